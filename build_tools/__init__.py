"""How fusedops is built ahead of time. What the build at run time needs as well is in fusedops/building/.

One ninja file compiles the core once and links it into a binding for every framework that is installed:

    environment.py      the environment that is installed to, and its frameworks
    torch_extension.py  objects + torch_binding/ -> fusedops/torch/_C.abi3.so
    torch_autograd.py   torch_autograd/          -> fusedops/torch/_autograd.torch2.13.so
    tf_library.py       objects + tf_binding/    -> fusedops/tf/_ops.so, and _xla.so beside it
    stubs.py            fusedops/functions/ -> fusedops/torch/functions.pyi, fusedops/tf/functions.pyi
    build.py            all of it, in order
    commands.py         the same as setuptools commands
    backend.py          the same for pip
    wheel.py            the same for others: a wheel in dist/, checked
    compat.py           the tests on a wheel, with several versions of torch and Python
    times.py            CPU time and size of each object
"""
