"""Sequences of attention."""

from __future__ import annotations


def check_whole_sequences(_: str) -> None:
    """Does nothing: TensorFlow has no attention that shards sequences over processes."""
