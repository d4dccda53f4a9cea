# fusedops: `make` alone lists the targets.
#
# Paths are relative and quoted, because make cannot handle names with spaces.

SHELL := /bin/sh
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# PYTHON selects an interpreter with its packages. Without it, the first target that needs .venv creates it.
ifdef PYTHON
python := "$(PYTHON)"
environment :=
wheel_tools :=
else
python := .venv/bin/python
environment := .venv/.installed
wheel_tools := .venv/.wheel
endif
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

cpp_files := find core_cuda torch_binding torch_autograd tf_binding xla_binding jax_binding -name '*.cpp' -o -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh'
# Tests run on all cores if pytest-xdist is installed.
pytest := $(python) -m pytest $$($(python) -c 'import xdist; print("-n auto --dist worksteal")' 2>/dev/null)
clang_format := $(python) -c 'from clang_format import clang_format; clang_format()'

.PHONY: help build build-torch build-tf build-jax wheel test test-all test-compat demo example bench bench-check bench-report families soak docs reference site format lint clean

help:
	@echo 'make build         build the bindings of PyTorch, TensorFlow and JAX, as far as they are installed'
	@echo 'make build-torch   build the binding of PyTorch      (fusedops/torch/_C.abi3.so, _autograd.*.so)'
	@echo 'make build-tf      build the binding of TensorFlow   (fusedops/tf/_ops.so, _xla.so)'
	@echo 'make build-jax     build the binding of JAX          (fusedops/jax/_ffi.so)'
	@echo 'make wheel         build a wheel for many GPUs into dist/, check it with auditwheel and abi3audit'
	@echo 'make test          build what is stale, run all but the slow tests, on every core'
	@echo 'make test-all      build what is stale, run every test'
	@echo 'make test-compat   run the tests of PyTorch on a wheel, with four versions of torch and of Python'
	@echo 'make demo          build what is stale, train a digit classifier, draw a picture'
	@echo 'make example       build what is stale, train a language model, generate text with it in every framework'
	@echo 'make bench         build what is stale, compare speed with the frameworks and other libraries'
	@echo 'make bench-check   build what is stale, fail if an operator has become slower on the CPU'
	@echo 'make bench-report  write the figures of the documents from runs, such as ARGS="here=build/bench/results.json"'
	@echo 'make families      build what is stale, count what convert replaces in all families, write docs/families.md'
	@echo 'make soak          build what is stale, check random calls against float64, for a minute'
	@echo 'make docs          build what is stale, convert and measure a Keras transformer, write docs/keras.md'
	@echo 'make reference     write the reference of all functions and layers into build/reference/'
	@echo 'make site          build what is stale, build the documentation site into build/site/html'
	@echo 'make format        format Python and C++'
	@echo 'make lint          check formatting, style and types'
	@echo 'make clean         remove everything that was built, except .venv'
	@echo
	@echo 'Options, such as in make build CUDA=0'
	@echo '  PYTHON=/path/to/python3     use that interpreter and its packages; nothing is installed'
	@echo '                              (without it, the first target that needs .venv creates it)'
	@echo '  FUSEDOPS_CUDA_ARCHS="8.0;9.0+PTX"   GPU architectures; by default those of the GPUs here, and none'
	@echo '                              without a GPU; for a wheel 8.0 to 12.0+PTX'
	@echo '                              (TORCH_CUDA_ARCH_LIST works too)'
	@echo '  FUSEDOPS_CPU_FLAGS=-march=native    by default -march=x86-64-v3 on x86-64'
	@echo '  FUSEDOPS_CUDA_FLAGS=-lineinfo       more flags for nvcc'
	@echo '  CUDA=0                      no kernels for GPUs, even if nvcc is installed'
	@echo '  DEBUG=1                     -G -g -O0 and assertions, in a separate build folder'
	@echo '  MAX_JOBS=2                  compilers in parallel; by default one per core'
	@echo '  ARGS="-k relu"              more arguments for test; ARGS=--quick for demo, example, bench and'
	@echo '                              docs; for soak ARGS="--seed 2 --calls 100000"'

# Python versions for which both TensorFlow and PyTorch have wheels.
.venv/.installed: requirements.txt requirements-cuda.txt requirements-headers.txt requirements-keras-hub.txt
	@for python in python3 python3.12 python3.11 python3.13 python3.10; do \
	  if "$$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then \
	    set -- "$$python"; break; \
	  fi; \
	done; \
	if [ $$# = 0 ]; then echo 'fusedops: Python 3.10 to 3.13 is needed, and none was found' >&2; exit 1; fi; \
	if .venv/bin/python -m pip --version >/dev/null 2>&1; then exit 0; fi; \
	echo "making .venv with $$1"; "$$1" -m venv --clear .venv
	@if nvidia-smi -L 2>/dev/null | grep -q GPU; then all=requirements-cuda.txt; else all=requirements.txt; fi; \
	echo "installing $$all into .venv"; \
	.venv/bin/python -m pip install -r $$all && \
	.venv/bin/python -m pip install --no-deps -r requirements-headers.txt -r requirements-keras-hub.txt
	@touch $@

.venv/.wheel: requirements-wheel.txt .venv/.installed
	@echo 'installing requirements-wheel.txt into .venv'
	@.venv/bin/python -m pip install -r requirements-wheel.txt
	@touch $@

build: $(environment)
	@$(python) -m build_tools

build-torch: $(environment)
	@$(python) -m build_tools torch

build-tf: $(environment)
	@$(python) -m build_tools tf

build-jax: $(environment)
	@$(python) -m build_tools jax

wheel: $(environment) $(wheel_tools)
	@$(python) -m build_tools.wheel

test: build
	$(pytest) -m 'not slow' $(ARGS)

test-all: build
	$(pytest) $(ARGS)

test-compat: $(environment) $(wheel_tools)
	@$(python) -m build_tools.compat $(ARGS)

demo: build
	$(python) examples/digits/train.py $(ARGS)

example: build
	$(python) examples/transformer/train.py $(ARGS)

bench: build
	$(python) -m benchmarks $(ARGS)

bench-check: build
	$(python) -m benchmarks.guard $(ARGS)

bench-report: $(environment)
	$(python) -m benchmarks.page $(ARGS)

families: build
	$(python) -m audits.families $(ARGS)

soak: build
	$(python) -m soak $(ARGS)

docs: build
	$(python) docs/build.py $(ARGS)

reference: build
	@$(python) -m build_tools.reference

site: build build/site/env/.installed
	@$(python) -m build_tools.site
	@NO_MKDOCS_2_WARNING=1 build/site/env/bin/python -m mkdocs --quiet build --strict --config-file build/site/mkdocs.yml
	@echo 'fusedops: the site is in build/site/html'

build/site/env/.installed: requirements-site.txt $(environment)
	@echo 'installing requirements-site.txt into build/site/env'
	@$(python) -m venv --clear build/site/env && build/site/env/bin/python -m pip install --quiet -r requirements-site.txt
	@touch $@

format: $(environment)
	$(python) -m ruff format .
	$(python) -m ruff check --fix .
	$(cpp_files) | tr '\n' '\0' | xargs -0 $(clang_format) -i

lint: build
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(cpp_files) | tr '\n' '\0' | xargs -0 $(clang_format) --dry-run -Werror
	$(python) -m mypy

clean:
	rm -rf build dist *.egg-info fusedops/*/*.so fusedops/*/_build.json fusedops/*/functions.pyi fusedops/functions/operators.pyi .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -prune -exec rm -rf {} +
