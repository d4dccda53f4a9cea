"""The headers that sources include, found by reading the text, without a compiler."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)


@dataclass(frozen=True)
class Includes:
    texts: tuple[tuple[str, bytes], ...]  # (suffix, text) of each source, (name, text) of each header
    folders: tuple[Path, ...]  # folders of headers that do not lie beside the file that includes them


def find(sources: Iterable[Path], core: Path) -> Includes:
    """Searches a header beside the file that includes it, in the core, then in the parent folders of that file.

    The parents let "ops/elementwise/square.h" be found wherever `ops` lies. A header found in none of these is left to
    the compiler.
    """
    files = [(source, source.suffix) for source in sources]  # a worklist: headers are appended during the loop
    known = {source for source, _ in files}
    texts, folders = [], {}
    for file, name in files:
        text = file.read_bytes()
        texts.append((name, text))
        for included in map(os.fsdecode, _INCLUDE.findall(text)):
            folder = file.parent
            if not (folder / included).is_file():
                if (core / included).is_file():
                    continue
                above = [place for place in file.parent.parents if (place / included).is_file()]
                if not above:
                    continue
                folder = above[0]
                folders[folder] = True
            if folder / included not in known:
                known.add(folder / included)
                files.append((folder / included, included))
    return Includes(tuple(texts), tuple(folders))
