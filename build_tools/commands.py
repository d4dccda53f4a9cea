"""The build as setuptools commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import setuptools

from fusedops.building import stubs
from fusedops.building.ahead import build as build_bindings
from fusedops.building.jit import FOLDERS
from fusedops.loading import FRAMEWORKS, release
from fusedops.sources import INSTALLED

if int(setuptools.__version__.split(".")[0]) < 77:
    raise SystemExit("fusedops: setuptools 77 or newer is needed. Run: pip install --upgrade setuptools")

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext


class Build(build):
    def run(self) -> None:
        # setuptools reuses the folder: stale files of an earlier build must not enter this wheel.
        package = Path(self.build_lib, "fusedops")
        shutil.rmtree(package, ignore_errors=True)
        super().run()
        for folder in FOLDERS:  # for the build at run time
            shutil.copytree(folder, package / INSTALLED / folder)


class BuildBindings(build_ext):
    def initialize_options(self) -> None:
        super().initialize_options()
        self.built: dict[str, str] = {}

    def run(self) -> None:
        self.built = build_bindings([], self._destination())

    def _destination(self) -> Path:
        return Path() if self.inplace else Path(self.build_lib)

    def get_outputs(self) -> list[str]:
        folders = {name: self._destination() / "fusedops" / name for name in self.built}
        files = {name: [*FRAMEWORKS[name].build(folder)["bytes"], "_build.json"] for name, folder in folders.items()}
        libraries = [str(folders[name] / file) for name in folders for file in files[name]]
        return [*libraries, *map(str, stubs.files(self._destination() / "fusedops"))]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Wheel(bdist_wheel):
    """Sets the wheel's tags.

    The Python tag is cp310-abi3: the torch extension uses the limited API, and the TensorFlow library no Python API.
    The build tag names the frameworks for people (fusedops-0.2.0-0.torch2.13.tf2.21-cp310-abi3-linux_x86_64.whl). pip
    has no tag to check these versions, so the loader does.
    """

    def finalize_options(self) -> None:
        self.py_limited_api = "cp310"
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        built = self.get_finalized_command("build_ext").built
        names = [f"{name}{'.'.join(map(str, release(version)))}" for name, version in built.items()]
        self.build_number = ".".join(["0", *names])
        return super().get_tag()


COMMANDS = {"build": Build, "build_ext": BuildBindings, "bdist_wheel": Wheel}
