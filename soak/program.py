"""A call as a standalone program that fails as the call did. It contains the inputs, or loads them from a file."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from soak import jax_side, tf_side, torch_side
from soak.call import THREADS, Call
from soak.layout import Tensor

SIDES: dict[str, ModuleType] = {"torch": torch_side, "tf": tf_side, "jax": jax_side}
FOLDER = Path(__file__).parent.parent / "build" / "soak"
MAX_INLINE_NUMBERS = 100


def function_code(call: Call, framework: str, way: str) -> str:
    """Code of a function from the call's tensors to a tuple of results."""
    arguments = [f"{name}={name if isinstance(x, Tensor) else repr(x)}" for name, x in call.inputs.items()]
    arguments += [f"{name}={value!r}" for name, value in call.options.items()]
    result = f"{call.spec.code}({', '.join(arguments)})"
    result = result if len(call.spec.outputs) > 1 else f"({result},)"
    parameters = ", ".join(name for name, x in call.inputs.items() if isinstance(x, Tensor))
    return SIDES[framework].FUNCTIONS.get(way, "{f}").format(f=f"lambda {parameters}: {result}")


def run_code(call: Call, framework: str, way: str) -> str:
    """Code of a function `run` without arguments that makes the call and returns all results."""
    tensors = [name for name, x in call.inputs.items() if isinstance(x, Tensor)]
    body = (
        SIDES[framework]
        .WAYS[way]
        .format(
            tensors=", ".join(tensors),
            wanted=", ".join(call.wanted),
            upstream=", ".join(call.upstream),
            tangents=", ".join(f"t{name}" for name in call.wanted),
            directions=", ".join(f"v{name}" for name in call.wanted),
            mapped=", ".join(call.mapped),
            dims=", ".join("0" if name in call.mapped else "None" for name in tensors),
            upstream_dims=", ".join("0" for _ in call.upstream),
            device=tf_side.DEVICES[call.plan.device],
        )
    )
    if way != "threads":
        return f"def run():\n{textwrap.indent(body, '    ')}"
    return f"""\
from concurrent.futures import ThreadPoolExecutor
def one(_):
{textwrap.indent(body, "    ")}
def run():
    with ThreadPoolExecutor({THREADS}) as pool:
        return [x for results in pool.map(one, range({THREADS})) for x in results]"""


def value_program(call: Call, check: str) -> str:
    """A program that makes the call and runs the code `check` on its `results`."""
    return _joined(
        [
            *_preparation(call, call.plan.framework, call.way),
            "results = run()",
            check.replace("{array}", SIDES[call.plan.framework].ARRAY),
        ]
    )


def repetition_program(call: Call) -> str:
    results = SIDES[call.plan.framework].LIST.format(results="run()")
    check = f"assert repr({results}) == repr({results})"
    return _joined([*_preparation(call, call.plan.framework, call.way), check])


def parity_program(call: Call, ways: dict[str, str], count: int) -> str:
    """A program that compares the first `count` results of two frameworks, each called in its way."""
    lines = []
    for framework, way in ways.items():
        results = SIDES[framework].LIST.format(results=f"run()[:{count}]")
        lines += [*_preparation(call, framework, way), f"in_{framework} = {results}"]
    one, other = (f"in_{framework}" for framework in ways)
    return _joined([*lines, f"assert repr({one}) == repr({other}), ({one}, {other})"])


def _joined(lines: Sequence[str]) -> str:
    text = "\n".join(filter(None, lines))
    return f"import numpy as np\n{text}\n" if "np." in text else f"{text}\n"


def _preparation(call: Call, framework: str, way: str) -> list[str]:
    """The lines before the run."""
    side = SIDES[framework]
    tensors = {name: x.memory if framework == "torch" else x.values for name, x in call.tensors.items()}
    if sum(x.size for x in tensors.values()) <= MAX_INLINE_NUMBERS:
        numbers = {name: repr(_wide(x).reshape(-1).tolist()) for name, x in tensors.items()}
    else:
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"{call.plan.seed}-{call.plan.number}-{framework}.npz"
        np.savez(path, **{name: _wide(x).reshape(-1) for name, x in tensors.items()})
        numbers = {name: f"np.load({str(path)!r})[{name!r}]" for name in tensors}
    lines = [f"{name} = {side.tensor_code(call, name, x, numbers[name], way)}" for name, x in call.tensors.items()]
    return [
        side.HEADER,
        *side.settings_code(call),
        *(line.replace("nan", "float('nan')") for line in lines),
        f"f = {function_code(call, framework, way)}",
        run_code(call, framework, way),
    ]


def _wide(x: np.ndarray) -> np.ndarray:
    return x if x.dtype.kind in "iub" else x.astype(np.float64)
