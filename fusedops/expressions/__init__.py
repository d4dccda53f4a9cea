"""Expressions: text that becomes rows of the table of operators, with their derivatives. Knows no framework."""

from __future__ import annotations

from fusedops.expressions.expression import Expression
from fusedops.expressions.program import Definition
from fusedops.expressions.structs import packed

__all__ = ["Definition", "Expression", "packed"]
