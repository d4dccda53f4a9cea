"""fusedops against its peers, in one run: `python -m benchmarks`, or `make bench`.

case.py               one row of the tables: what is computed, the work that it must do, its goals
cases.py, rows.py, growth.py, calls.py     what is measured; selection.py: what of it the options ask for
inputs.py             what each operator takes and returns
formulas.py           what each operator computes, for every framework and for the reference
check.py              whether results are right; a wrong contender shows no time
timing.py             contenders take turns; clocks of the host
torch_contenders.py   PyTorch's contenders; torch_formulas.py, torch_clocks.py: its functions, its clocks
torch_caches.py       what the GPU's cache holds when a timed call starts
peers.py              Liger and QuACK, where they are installed
tf_contenders.py      TensorFlow's contenders; tf_formulas.py: its functions; tf_keras.py: Keras's layers and a model
contest.py            measures one row; runner.py: one framework's rows, in a process of its own
schema.py             the fields of results.json; environment.py: the machine
verdicts.py           whether goals were met
compare.py            which rows have moved since another run
report.py             tables
__main__.py           the command line
page.py               docs/benchmarks.md: page_tables.py and pictures/ from runs, which summary.py trims
guard.py, ratio.py    make bench-check: ratios on the CPU beside the committed ones
"""
