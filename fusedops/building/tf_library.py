"""The TensorFlow binding: two libraries for tf.load_op_library.

    _ops.so     tf_binding/ and the core's objects: the operators
    _xla.so     tf_binding/xla/ and xla_binding/: the operators' XLA kernels; it uses the loaded _ops.so

They use no Python API. TensorFlow's C++ ABI changes with every minor version, so they work only with the TensorFlow
they were built against.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusedops.building.core import CORE
from fusedops.building.cuda import Toolkit
from fusedops.building.jax_library import XLA_BINDING
from fusedops.building.ninja import NinjaFile
from fusedops.building.options import Options

BINDING = Path("tf_binding")
XLA = BINDING / "xla"

_FLAGS_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from tensorflow import sysconfig
print(json.dumps({"compile": sysconfig.get_compile_flags(), "link": sysconfig.get_link_flags()}))
"""


def _flags(options: Options, version: str) -> dict[str, Any]:
    """TensorFlow's compile and link flags, cached in a file because importing TensorFlow takes seconds."""
    cache = options.folder / "tensorflow.json"
    key = [sys.prefix, version]
    if cache.exists():
        answer: dict[str, Any] = json.loads(cache.read_text())
        if answer["key"] == key and Path(answer["include"]).is_dir():
            return answer
    done = subprocess.run([sys.executable, "-c", _FLAGS_PROGRAM, json.dumps(sys.path)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"fusedops: TensorFlow {version} is installed but does not import:\n{done.stderr}")
    answer = json.loads(done.stdout.splitlines()[-1])
    include = next(flag.removeprefix("-I") for flag in answer["compile"] if flag.startswith("-I"))
    answer |= {"key": key, "include": include}
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps(answer))
    return answer


def add_tf(
    ninja: NinjaFile, options: Options, version: str, objects: Sequence[Path], toolkit: Toolkit | None
) -> list[Path]:
    flags = _flags(options, version)
    # Only the ABI macros of TensorFlow's flags are used: the core needs C++20. -isystem silences its headers' warnings.
    defines = [flag for flag in flags["compile"] if flag.startswith("-D")]
    # XLA's headers include these two libraries relative to their own roots.
    roots = ["", "external/highwayhash", "external/farmhash_archive/src"]
    includes = [word for root in roots for word in ("-isystem", str(Path(flags["include"], root)))]
    own_includes = [f"-I{CORE}", f"-I{BINDING}", f"-I{XLA_BINDING}"]
    compile_cc = [*options.cxx, "-std=c++20", *options.host_flags, "-Wall", "-Wextra", *own_includes]
    ninja.rule(
        "tf_cc", [*compile_cc, *defines, *includes, "-c", "$in", "-o", "$out"], description="c++ $in", headers=True
    )

    def compiled(*folders: Path) -> list[Path]:
        sources = [source for folder in folders for source in sorted(folder.glob("*.cc"))]
        return [ninja.build(options.folder / f"{source}.o", "tf_cc", [source]) for source in sources]

    libraries = options.folder / "lib/fusedops/tf"
    cudart: list[Path | str] = [toolkit.cudart, "-ldl", "-lrt", "-lpthread"] if toolkit else []
    link = [*options.cxx, "-shared", "-o", "$out", "$in", *flags["link"], "-Wl,--exclude-libs,ALL,-Bsymbolic"]
    # No file has this soname. Through it _xla.so binds to the loaded _ops.so, wherever its file lies, and never to
    # another library named _ops.so.
    name = "-Wl,-soname,fusedops_tf_operators"
    ninja.rule("tf_link", [*link, *cudart, name], description="link $out")
    operators = ninja.build(libraries / "_ops.so", "tf_link", [*compiled(BINDING), *objects])
    ninja.rule("tf_link_xla", [*link, f"-L{libraries}", f"-l:{operators.name}"], description="link $out")
    return [
        operators,
        ninja.build(libraries / "_xla.so", "tf_link_xla", compiled(XLA, XLA_BINDING), implicit=[operators]),
    ]
