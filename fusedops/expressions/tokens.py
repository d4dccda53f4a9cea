"""The tokens of an expression, and errors that show their place in it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

_SHOWN = 100  # characters of a line

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\f]+|#[^\n]*)"
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<symbol>\*\*|[<>=!]=|[-+*/<>=(),;\n])",
    re.ASCII,
)
_WORD = re.compile(r"[A-Za-z_0-9.]")


class Token(NamedTuple):
    kind: str  # number, name, symbol, end
    text: str
    at: int

    @property
    def shown(self) -> str:
        return {"": "the end", "\n": "the end of the line"}.get(self.text, repr(self.text))


def read(text: str) -> Iterator[Token]:
    """The tokens, then "end" forever."""
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            advice = "write a power as x ** 2" if text[at] == "^" else ""
            fail_at(text, Token("", "", at), f"unexpected {_described(text[at])}", advice)
        kind, value = str(found.lastgroup), found.group()
        if kind == "number" and _WORD.match(text, found.end()):
            fail_at(text, Token("", "", found.end()), f"expected an operator after the number {value[:40]}")
        if kind != "space":
            yield Token(kind, value, at)
        at = found.end()
    while True:
        yield Token("end", "", at)


def fail(sentence: str) -> NoReturn:
    raise ValueError(f"fusedops.elementwise: {sentence}")


def fail_at(text: str, token: Token, sentence: str, more: str = "") -> NoReturn:
    """Fails with the place, and shows it in an excerpt of the line."""
    start = text.rfind("\n", 0, token.at) + 1
    line = text[start:].partition("\n")[0]
    column = token.at - start
    left = max(0, min(column - _SHOWN // 2, len(line) - _SHOWN))
    shown = "".join(c if c.isprintable() else " " for c in line[left : left + _SHOWN]).rstrip()
    where = f"at column {column + 1} of line {text.count(chr(10), 0, token.at) + 1}"
    more = f"; {more}" if more else ""
    fail(f"{sentence} {where}{more}\n    {shown}\n    {' ' * (column - left)}^")


def _described(character: str) -> str:
    if character.isascii() and character.isprintable():
        return f'"{character}"' if character == "'" else f"'{character}'"
    name = unicodedata.name(character, "").lower()
    return f"U+{ord(character):04X}" + (f" ({name})" if name else "")
