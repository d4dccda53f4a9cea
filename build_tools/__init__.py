"""The build commands of a checkout; the build itself is in fusedops/building/.

__main__.py         builds the bindings in place
commands.py         the build as setuptools commands
backend.py          the build backend for pip
wheel.py            builds and checks a distributable wheel in dist/
compat.py           tests a wheel with several versions of torch and Python
times.py            CPU time and size of each object
operators.py        fusedops/functions/operators.pyi, from the compiled library
reference.py        the API reference, a page for each family
"""
