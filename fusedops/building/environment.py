"""The site-packages that pip's isolated builds hide."""

from __future__ import annotations

import json
import subprocess
import sys


def show_site_packages() -> None:
    """Appends the site-packages of the target environment to sys.path.

    pip builds in an isolated environment, which has neither torch nor TensorFlow. Appending them leaves the packages
    that pip chose for the build in front.
    """
    # -E: pip isolates a build through PYTHONPATH.
    command = [sys.executable, "-E", "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    folders = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    sys.path += [folder for folder in folders if folder not in sys.path]
