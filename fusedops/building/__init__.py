"""The build of fusedops: ahead of time, at run time (fusedops.torch.jit), and for user-defined operators (load).

One ninja file compiles the core once and links it into a binding for every framework:

ahead.py        the build ahead of time, for every installed framework; build_tools/ has its commands
jit.py          the build of the PyTorch binding at run time
library.py      compiles a library of user-defined operators, with a cache on disk
core.py         core_cuda/ -> objects
binding.py      flags of torch_binding/
torch_extension.py  objects + torch_binding/ -> fusedops/torch/_C.abi3.so
autograd.py     torch_autograd/ -> fusedops/torch/_autograd.torch2.13.so, one per minor version of torch
tf_library.py   objects + tf_binding/ -> fusedops/tf/_ops.so, and _xla.so beside it
facts.py        _build.json: what a library was built for
options.py      build options, read from environment variables
environment.py  the site-packages that pip's isolated builds hide
cuda.py         the CUDA toolkit, the local GPUs and the CUTLASS headers
architectures.py  the GPU architectures to compile for
stubs.py        fusedops/functions/ -> fusedops/torch/functions.pyi, fusedops/tf/functions.pyi
ninja.py        writes and runs a ninja file
includes.py     the headers that sources include
progress.py     progress bar of a build
unbuilt.py      placeholder for fusedops.torch while it is not built
"""
