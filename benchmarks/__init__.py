"""fusedops against its peers, in one run: `python -m benchmarks`, or `make bench`.

__main__.py   the command line
operators/    what the benchmark knows of each operator
cases/        what is measured, and what of it the options ask for
contenders/   who takes part: fusedops, the frameworks' own operators, compilers, other libraries
measuring/    how a case is measured: one process for each framework, results checked, contenders taking turns
results/      what a run writes, and what follows from it: goals, tables, which rows have moved
page/         docs/benchmarks.md: `make bench-report`
guard/        ratios on the CPU beside the committed ones: `make bench-check`
"""
