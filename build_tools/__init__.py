"""How fusedops is built.

One ninja file compiles the core once and links it into a binding for every framework that is installed:

    options.py          what the environment asks for
    cuda.py             the CUDA toolkit, the CUTLASS headers and the GPU architectures
    environment.py      the frameworks of the environment that is installed to
    ninja.py            writes and runs a ninja file
    core.py             core_cuda/ -> objects
    torch_extension.py  objects + torch_binding/ -> fusedops/torch/_C.abi3.so
    tf_library.py       objects + tf_binding/    -> fusedops/tf/_ops.so, and _xla.so beside it
    build.py            all of it, in order
    commands.py         the same as setuptools commands
    backend.py          the same for pip
"""
