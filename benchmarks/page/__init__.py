"""docs/benchmarks.md, from runs."""
