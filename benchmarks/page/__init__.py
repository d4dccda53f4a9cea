"""Writes docs/benchmarks.md from runs."""
