# make            sets everything up: a virtual environment in .venv, the packages, the build
# make compare    does so and compares a course network before and after the swap
# make check      ... and runs, in a minute or so, the style checks and the tests of single parts: tests/unit and
#                 tests/op without those marked `slow`
# make test       ... and runs the tests that prove the product: all but those marked `extended`
# make test-all   ... and runs what `make test` leaves out: fuzzing, long draws, builds and packages, PyTorch, the oldest
#                 ONNX Runtime in .venv-oldest, the CPU's kernels for lesser processors than this one, and the
#                 compiler's sanitizers
# make dev        sets everything up such that edits of Python files count at once, without a build, also for the
#                 commands above, and compiles each C++ file alone, with ccache where that is found; make clean ends that
# make tables     ... and measures every network, the course layers and the ladder on an H200, for benchmarks,
#                 docs and README.md; all but the profiler beside Nsight Compute
# make wheel      ... and makes a wheel in dist that has kernels for every card
# make lint       ... and checks the style of every source file
# make sanitize   builds with the compiler's sanitizers and runs those tests that reach all of the compiled code
# make clean      removes all that these have made
#
# It needs Linux x86-64, Python 3.11 or newer with its venv module, g++ 11 or newer, and make. Variables:
#   PYTHON=python3.12     the Python to take
#   PYTHON_ENV=system     no .venv and no network: PYTHON has the packages already, and convswap goes there too

PYTHON ?= python3
PYTHON_ENV ?= venv
export PYTHON PYTHON_ENV

ifeq ($(PYTHON_ENV),system)
python := $(PYTHON)
stamps := build/system
else
python := .venv/bin/python
stamps := .venv/stamps
endif

options := $(PYTHON)
# Folders too: their times change when a file goes.
compiled := $(shell find custom_op cmake python/bindings) CMakeLists.txt pyproject.toml
sources := $(compiled) $(shell find python models export -not -path '*__pycache__*')
# Once `make dev` has been asked for: of Python the folders alone, since new files need a link.
linked := $(compiled) $(shell find python models export -type d -not -name __pycache__)
installed := $(if $(wildcard $(stamps)/dev),dev,build)
c_sources := $(shell find custom_op python examples tests/fake_driver tests/op_library -name '*.cc' -o -name '*.h' -o -name '*.cuh')

# Tests run three at a time, since some wait, on two cores as well, beside a card one for 6 GB of its memory and at most
# eight; there those of times and those that fill the memory run afterwards, one by one. Where a Python that was given has
# no pytest-xdist all do.
has_card := $(wildcard /dev/nvidia[0-9]* /dev/dxg)
total_memory = nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null
at_once = $(if $(has_card),$(shell $(total_memory) | awk -v most=$$(nproc) \
  'NR == 1 {n = int($$1 / 6000)} END {if (n > most) n = most; if (n > 8) n = 8; print n < 1 ? 1 : n}'),3)
parallel = $(shell $(python) -c 'import xdist' 2>/dev/null && printf '%s' '-n $(at_once) --dist worksteal')
one_by_one = alone or large
# Side by side they share the cores: of NumPy's and PyTorch's own threads each would have as many as there are cores,
# which wait for each other by spinning. And what is freed stays with the process: to get it anew, page by page, took
# tests of sessions a fifth of their time. Not with a glibc that takes no so large threshold, as old ones do.
kept = $(shell getconf GNU_LIBC_VERSION | awk '$$2 >= 2.36 {print "MALLOC_MMAP_THRESHOLD_=500000000 MALLOC_TRIM_THRESHOLD_=2000000000"}')
shared_cores = $(if $(parallel),OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(kept))

.PHONY: all help dev compare check single_parts test test-all extended instruction_sets tables wheel lint sanitize \
  clean changed_options
.DELETE_ON_ERROR:

all: $(stamps)/$(installed)

# A line for each of what follows and is meant for users.
help:
	@echo 'make            build the library, install the package into .venv'
	@echo 'make compare    the same, then compare ece408-2019fa with the default provider'
	@echo 'make test       the same, then run the tests; those marked gpu where there is a card'
	@echo 'make test-all   what make test leaves out: fuzzing, packages, PyTorch, old versions and CPUs, sanitizers'
	@echo 'make check      style, unit tests, kernels called directly: under a minute'
	@echo 'make dev        have an edit of a Python file count at once'
	@echo 'make lint       style and types alone'
	@echo 'make sanitize   what compiled code needs, under sanitizers of the compiler'
	@echo 'make wheel      a wheel with the generic kernels for every card from 7.5 on'
	@echo 'make tables     measure and write all tables; needs a card, and hours'
	@echo 'make clean      delete what was built and installed'
	@echo
	@echo 'PYTHON=python3.12 takes another Python, PYTHON_ENV=system no environment of its own, CXX=g++-12 another compiler.'

dev: $(stamps)/dev

compare: all
	$(python) -m convswap.cli compare ece408-2019fa

check: all $(stamps)/lint
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint single_parts

single_parts: all
	$(shared_cores) $(python) -m pytest $(parallel) -m 'not (slow or extended)' tests/unit tests/op

# Takes an expression of markers. Beside a card some tests run one by one, afterwards; pytest's status 5 says that
# there are none.
ifeq ($(has_card),)
run_tests = @$(shared_cores) $(python) -m pytest $(parallel) -m '$(1)'
else
run_tests = @$(shared_cores) $(python) -m pytest $(parallel) -m '($(1)) and not ($(one_by_one))'; together=$$?; \
  $(python) -m pytest -m '($(1)) and ($(one_by_one))'; case $$? in 0 | 5) exit $$together ;; *) exit 1 ;; esac
endif

test: all
	$(call run_tests,not extended)

test-all: extended instruction_sets sanitize

# The CPU's kernels take the best instructions of the processor by themselves. Those of a card have no part in it.
instruction_sets: all
	@for most in avx2 baseline; do \
	  echo "CONVSWAP_MAX_INSTRUCTION_SET=$$most"; \
	  CONVSWAP_MAX_INSTRUCTION_SET=$$most $(shared_cores) $(python) -m pytest $(parallel) \
	    -m 'not (gpu or slow or extended)' --ignore-glob '*_kernels*.py' tests/op || exit 1; \
	done

extended: all $(stamps)/oldest $(stamps)/torch
	$(call run_tests,extended)

tables: all
	$(python) tests/helpers/real_models.py build/real-models/timed
	$(python) benchmarks/results.py
	$(python) benchmarks/readme_tables.py
	$(python) benchmarks/ladder_page.py

wheel: $(stamps)/packages
	$(python) tools/make_wheel.py

lint: all $(stamps)/lint
	@.venv/bin/clang-format --dry-run -Werror $(c_sources)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy --package convswap
	.venv/bin/mypy examples/load.py
	@.venv/bin/lint-imports --no-cache
	@.venv/bin/python tools/vocabulary.py

sanitize: $(stamps)/sanitized
	@sh tools/sanitize.sh test

clean:
	rm -rf .venv .venv-oldest build

$(stamps)/packages: pyproject.toml $(stamps)/options
	@sh tools/set_up.sh packages
	@mkdir -p $(@D) && touch $@

$(stamps)/lint: $(stamps)/packages
	@sh tools/set_up.sh lint
	@touch $@

$(stamps)/build: $(stamps)/packages $(sources)
	@sh tools/set_up.sh build
	@touch $@

$(stamps)/dev: $(stamps)/packages $(linked)
	@sh tools/set_up.sh dev
	@touch $@

$(stamps)/oldest: $(stamps)/packages
	@sh tools/set_up.sh oldest
	@touch $@

$(stamps)/torch: $(stamps)/packages
	@sh tools/set_up.sh torch
	@touch $@

$(stamps)/sanitized: $(stamps)/packages tools/sanitize.sh $(sources)
	@sh tools/sanitize.sh build
	@touch $@

$(stamps)/options: changed_options
	@mkdir -p $(@D)
	@echo '$(options)' | cmp --quiet - $@ || echo '$(options)' >$@
