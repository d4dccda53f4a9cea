"""Figures of the documents, from runs: `make bench-report`."""
