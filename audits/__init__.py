"""Audits of `convert` on models of other libraries: counts of converted modules, and comparisons of results."""
