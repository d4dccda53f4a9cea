"""Expressions: text that becomes operators of the table, with their derivatives. Independent of frameworks."""

from __future__ import annotations

from fusedops.expressions.expression import Expression
from fusedops.expressions.program import Definition
from fusedops.expressions.structs import packed

__all__ = ["Definition", "Expression", "packed"]
