"""The commands of a checkout around the build, which is in fusedops/building/.

__main__.py         builds the bindings in place
commands.py         the same as setuptools commands
backend.py          the same for pip
wheel.py            the same for others: a wheel in dist/, checked
compat.py           the tests on a wheel, with several versions of torch and Python
times.py            CPU time and size of each object
operators.py        fusedops/functions/operators.py, from the compiled library
reference.py        the API reference, a page for each family
"""
