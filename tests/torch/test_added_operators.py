"""PyTorch: operators added to the operator table at run time, from their own library."""

from __future__ import annotations

import ctypes
import json
import re

import pytest

from fusedops import operator_table
from tests.helpers.added_operators import compiled
from tests.helpers.running import run_program


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    return compiled(tmp_path_factory)


@pytest.mark.parametrize("autograd", ["cpp", "python"])
def test_added_operators_are_like_any_other(added, autograd):
    pytest.importorskip("torch")
    done = run_program("torch_added_operators.py", added, FUSEDOPS_TORCH_AUTOGRAD=autograd)
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(failed.values())


def test_invalid_operators_are_refused(added):
    """Refused with a message, and none of them is added."""
    library = pytest.importorskip("fusedops.torch.library")
    faulty = ctypes.CDLL(str(added)).faulty_library
    faulty.restype = ctypes.c_void_p
    sentence, before = ctypes.c_char_p(), dict(library.TABLE)
    for place in range(100):
        refused = faulty(ctypes.c_int64(place), ctypes.byref(sentence))
        if refused is None:
            break
        with pytest.raises(ValueError, match=f"^{re.escape(sentence.value.decode())}$"):
            operator_table.add(library.LIBRARY, lambda refused=refused: refused)
    assert place > 10
    library.added()
    assert before == library.TABLE
