"""PyTorch: operators that are added to the table at run time, from a library of their own."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess

import pytest

from fusedops.building.core import CORE, FOR_LIBRARIES
from fusedops.building.options import Options
from tests.helpers.running import PROGRAMS, ROOT, run_program


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """tests/programs/rows.cpp, compiled."""
    options = Options.from_environment()
    if shutil.which(options.cxx[0]) is None:
        pytest.skip(f"there is no {options.cxx[0]}")
    output = tmp_path_factory.mktemp("rows") / "rows.so"
    sources = [PROGRAMS / "rows.cpp", *(ROOT / CORE / source for source in FOR_LIBRARIES)]
    command = [*options.cxx, "-std=c++20", *options.host_flags, "-O1", f"-I{ROOT / CORE}", "-shared", "-Wl,-z,defs"]
    subprocess.run([*command, *sources, "-o", output], check=True)
    return output


@pytest.mark.parametrize("autograd", ["cpp", "python"])
def test_added_operators_are_like_any_other(rows, autograd):
    pytest.importorskip("torch")
    done = run_program("torch_rows.py", rows, FUSEDOPS_TORCH_AUTOGRAD=autograd)
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(failed.values())


def test_faulty_rows_are_refused(rows):
    """With a sentence, and none of them is added."""
    library = pytest.importorskip("fusedops.torch.library")
    faulty = ctypes.CDLL(str(rows)).faulty_library
    faulty.restype = ctypes.c_void_p
    sentence, before = ctypes.c_char_p(), dict(library.TABLE)
    for place in range(100):
        refused = faulty(ctypes.c_int64(place), ctypes.byref(sentence))
        if refused is None:
            break
        got = library.LIBRARY.fusedops_add_operators(ctypes.c_void_p(refused))
        assert got is not None and got.decode() == sentence.value.decode()
    assert place > 10
    library.added()
    assert before == library.TABLE
