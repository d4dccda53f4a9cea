"""Audits of what `convert` does to models of other libraries: counts, and comparisons of results."""
