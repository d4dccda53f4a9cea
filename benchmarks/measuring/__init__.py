"""Measures cases: one process per framework, results checked, contenders in turns."""
