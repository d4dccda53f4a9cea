"""fusedops against its baselines, in one run: `python -m benchmarks`, or `make bench`.

__main__.py   the command line
operators/    one record per operator: work, inputs, formula, baselines
distributed/  steps on several GPUs: `--gpus`
cases/        the cases, and their selection by command-line options
implementations/
              fusedops, the frameworks' own operators, compilers and other libraries, built for a case
measuring/    measures a case: one process per framework, results checked against a reference, implementations in turns
results/      the results of a run, and figures, goals, tables and comparisons derived from them
page/         blocks of figures and charts in the documents: `make bench-report`
guard/        compares ratios on the CPU with the committed ones: `make bench-check`

Terms:

case        a measurement to make: operator, variant, dtype, shape
row         the results of one case; a run has the rows of one framework
implementation
            fusedops or a baseline, as it is timed in a case
baseline    an implementation that does fusedops's work by other means
goal        a required ratio or time of a case; a verdict says if a row meets it
problem     a sentence on an implementation that failed or whose results are wrong

Only the guard, `make bench-check`, fails if an operator becomes slower.
"""
