"""The environment that fusedops is installed to, which pip hides from a build of its own."""

from __future__ import annotations

import json
import subprocess
import sys


def show_site_packages() -> None:
    """pip builds in an isolated environment, where torch and TensorFlow are not seen. They are appended, so that what
    pip chose for the build still comes first."""
    # -E: pip isolates a build through PYTHONPATH.
    question = [sys.executable, "-E", "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    answer = subprocess.run(question, capture_output=True, text=True, check=True).stdout
    sys.path += [place for place in json.loads(answer) if place not in sys.path]
