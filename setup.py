"""The metadata is in pyproject.toml, the build in fusedops/building/."""

from setuptools import Extension, setup

from build_tools.commands import COMMANDS

# A placeholder for all bindings: those of the installed frameworks are built.
setup(ext_modules=[Extension("fusedops.torch._C", [], py_limited_api=True)], cmdclass=COMMANDS)
