"""Tests of single operator families."""
