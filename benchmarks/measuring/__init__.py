"""Measures cases: one process per framework, results checked, implementations in turns."""
