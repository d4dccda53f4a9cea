"""fusedops against its peers, in one run: `python -m benchmarks`, or `make bench`.

__main__.py   the command line
operators/    what the benchmark knows of each operator
cases/        what is measured, and what of it the options ask for
contenders/   who takes part: fusedops, the frameworks' own operators, compilers, other libraries
measuring/    how a case is measured: one process for each framework, results compared with a reference, turns taken
results/      what a run writes, and what follows from it: goals, tables, which rows have moved
page/         docs/benchmarks.md: `make bench-report`
guard/        ratios on the CPU beside the committed ones: `make bench-check`

The words: a case is what is to be measured, and a row what was measured of it; a run has the rows of one framework. A
contender is timed in a case, and a peer is one that does fusedops's work by other means. A goal belongs to a case, and
the verdict says whether a row meets it; of results that are wrong, the contender's problem says so. Nothing but
`make bench-check` fails where something has become slower: that is the guard, over its own ratios.
"""
