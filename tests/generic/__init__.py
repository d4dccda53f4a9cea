"""Guarantees of every operator, each written once and run on every specification."""
