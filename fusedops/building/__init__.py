"""The build of fusedops: ahead of time, at run time (fusedops.torch.jit), and with operators of one's own (load).

One ninja file compiles the core once and links it into a binding for every framework:

ahead.py        the build ahead of time, of all that is installed; build_tools/ has its commands
jit.py          the build of the PyTorch binding at run time
library.py      how a library of operators of one's own is compiled and kept
core.py         core_cuda/ -> objects
binding.py      flags of torch_binding/
torch_extension.py  objects + torch_binding/ -> fusedops/torch/_C.abi3.so
autograd.py     torch_autograd/ -> fusedops/torch/_autograd.torch2.13.so, for one version of torch each
tf_library.py   objects + tf_binding/ -> fusedops/tf/_ops.so, and _xla.so beside it
facts.py        _build.json: what a library was built for
options.py      what the environment asks for
environment.py  the environment that is installed to, which pip hides from a build of its own
cuda.py         the CUDA toolkit, the GPUs here and the CUTLASS headers
architectures.py  the GPU architectures to compile for
stubs.py        fusedops/functions/ -> fusedops/torch/functions.pyi, fusedops/tf/functions.pyi
ninja.py        writes and runs a ninja file
includes.py     the headers that sources include
progress.py     what a build shows meanwhile
unbuilt.py      stands for fusedops.torch where it is not built
"""
