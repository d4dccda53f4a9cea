"""What all ways of building share: ahead of time (build_tools/), at run time (fusedops.torch.jit), and of operators of
one's own (load).

options.py      what the environment asks for
cuda.py         the CUDA toolkit, the GPUs here and the CUTLASS headers
architectures.py  the GPU architectures to compile for
ninja.py        writes and runs a ninja file
core.py         core_cuda/ -> objects
binding.py      how torch_binding/ is compiled and linked
autograd.py     how torch_autograd/ is, for one version of torch each
facts.py        _build.json: what a library was built for
jit.py          the build at run time
library.py      how a library of operators of one's own is compiled and kept
includes.py     the headers that its sources include
progress.py     what it shows meanwhile
"""
