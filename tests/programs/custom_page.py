"""Run by tests/tools/test_custom_docs.py, in its own folder: writes the files of docs/your-own-operator.md there, runs
its programs in order as a user of one framework, and compares their output or errors with the page. Arguments: the
page, the framework. Prints the differences."""

import contextlib
import io
import re
import sys
from pathlib import Path

PAGE, FRAMEWORK = Path(sys.argv[1]).read_text(), sys.argv[2]
OTHER = {"torch": r"\btf\b|tensorflow", "tf": r"torch"}[FRAMEWORK]

for name, code in re.findall(r"^`(\S+)`:\n\n```cpp\n(.*?)^```", PAGE, re.M | re.S):
    Path(name).write_text(code)


def same(shown: str, printed: str) -> bool:
    """Compares the part of an error that is not the framework's, and all of any other output."""
    shown, printed = shown.strip(), printed.strip()
    if re.match(r"\w+Error: ", shown):
        kind, sentence = shown.split(": ", 1)
        kinds = {"RuntimeError": ("RuntimeError", "InvalidArgumentError")}.get(kind, (kind,))
        return printed.startswith(kinds) and all(part.strip() in printed for part in sentence.split("..."))
    return shown == printed


failed, names = 0, {"__name__": "__main__"}
for found in re.finditer(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```)?", PAGE, re.M | re.S):
    code, shown = found[1], found[2] or ""
    if re.search(OTHER, code):
        continue
    line = PAGE.count("\n", 0, found.start()) + 2
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, f"{sys.argv[1]}, block of line {line}", "exec"), names)
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    if not same(shown, printed.getvalue()):
        failed += 1
        print(f"\nThe program of line {line} shows\n{shown}\nand prints\n{printed.getvalue()}")
sys.exit(failed)
