"""fusedops against its peers, in one run: `python -m benchmarks`, or `make bench`.

case.py               one row of the tables: what is computed, the work that it must do, its goals
cases.py, rows.py     what is measured
inputs.py             what each operator takes and returns
formulas.py           what each operator computes, for every framework and for the reference
check.py              whether results are right; a wrong contender shows no time
timing.py             contenders take turns; clocks of the host
torch_contenders.py   PyTorch's contenders; torch_formulas.py, torch_clocks.py: its functions, its clocks
peers.py              Liger and QuACK, where they are installed
tf_contenders.py      TensorFlow's contenders; tf_formulas.py: its functions; tf_keras.py: Keras's layers and a model
runner.py             measures one framework's cases, in a process of its own
verdicts.py           whether goals were met
report.py             tables
__main__.py           the command line
"""
