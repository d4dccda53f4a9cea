"""Which headers sources include, found in their text: a compiler is not asked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)


@dataclass(frozen=True)
class Includes:
    texts: tuple[tuple[str, bytes], ...]  # of the sources, with their suffixes, and of the headers, with their names
    folders: tuple[Path, ...]  # in which headers are that do not lie beside what includes them


def find(sources: Iterable[Path], core: Path) -> Includes:
    """A header is looked for beside the file that includes it, in the core, then in the folders above that file: so
    "ops/elementwise/square.h" is found wherever `ops` lies. What is in none of these is left to the compiler."""
    files = [(source, source.suffix) for source in sources]  # grows
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
