"""The metadata is in pyproject.toml, the build in fusedops/building/."""

from setuptools import Extension, setup

from build_tools.commands import COMMANDS

# Stands for both bindings: which of them are built depends on the frameworks that are installed.
setup(ext_modules=[Extension("fusedops.torch._C", [], py_limited_api=True)], cmdclass=COMMANDS)
