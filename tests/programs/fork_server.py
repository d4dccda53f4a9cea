"""Run by helpers/running.py: imports the frameworks, then forks a process for each Python program.

Each line of the input describes a program, as JSON. Each line of the output is the exit status of one.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import types
import warnings
from pathlib import Path

for package in ("numpy", "torch", "tensorflow"):
    with contextlib.suppress(ImportError):
        importlib.import_module(package)


def folders(variables):
    return [folder for folder in variables.get("PYTHONPATH", "").split(os.pathsep) if folder]


INSTALLED = [folder for folder in sys.path[1:] if folder not in folders(os.environ)]


def run(arguments, environment, folder, seconds, outputs):
    """Runs the program like `python *arguments` in a new interpreter."""
    signal.alarm(seconds)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, output in enumerate(outputs, start=1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if "PYTHONWARNINGS" in environment:
        warnings.simplefilter(environment["PYTHONWARNINGS"])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if arguments[0] == "-c":
        code, file, first = arguments[1], "<string>", ""
        sys.argv = ["-c", *arguments[2:]]
    else:
        file = main.__file__ = arguments[0]
        code, first = Path(file).read_text(), str(Path(file).resolve().parent)
        sys.argv = arguments
    sys.path[:] = [first, *folders(environment), *INSTALLED]
    exec(compile(code, file, "exec"), vars(main))


for line in sys.stdin:
    child = os.fork()
    if not child:
        run(**json.loads(line))
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
