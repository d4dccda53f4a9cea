"""fusedops against its peers, in one run: `python -m benchmarks`, or `make bench`.

cases.py              what is measured: one row each, with the work it must do and the goals
formulas.py           what each operator computes, for every framework and for the reference
check.py              whether an output is right; a wrong contender shows no time
timing.py             contenders take turns; clocks of the host
torch_contenders.py   PyTorch's contenders and clocks
tf_contenders.py      TensorFlow's
runner.py             measures one framework's cases, in a process of its own
report.py             goals, tables
__main__.py           the command line
"""
