# make            sets everything up: a virtual environment in .venv, the packages, the build
# make compare    also compares a course network before and after the swap
# make check      also runs, in about a minute, the style checks, and tests/unit and tests/op without tests marked `slow`
# make test       also runs all tests except those marked `extended`
# make test-all   also runs the tests that `make test` leaves out: fuzzing, long draws, builds and packages, PyTorch, Ray,
#                 the oldest ONNX Runtime in .venv-oldest, the CPU kernels for older processors, and the compiler's
#                 sanitizers
# make dev        sets everything up so that edits of Python files take effect without a build, also for the commands
#                 above. Compiles each C++ file separately, with ccache if installed. make clean ends this mode
# make tables     also measures every network, the course layers and the ladder on an H200, for benchmarks, docs and
#                 README.md; all tables except the comparison of the profiler with Nsight Compute
# make wheel      also makes a wheel in dist with kernels for every card
# make lint       ... and checks the style of every source file
# make docs       makes the site of docs/ in build/site, and checks its links
# make sanitize   builds with the compiler's sanitizers and runs tests that cover the compiled code
# make clean      removes everything that these targets made
#
# Requirements: Linux x86-64, Python 3.11 or newer with its venv module, g++ 11 or newer, and make. Variables:
#   PYTHON=python3.12     the Python to use
#   PYTHON_ENV=system     no .venv and no network: PYTHON has the packages already, and convswap is installed there

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
# Folders are prerequisites too: their times change when a file is removed.
compiled := $(shell find custom_op cmake python/bindings) CMakeLists.txt pyproject.toml
sources := $(compiled) $(shell find python models export -not -path '*__pycache__*')
# Prerequisites after `make dev`: of the Python rooms only the folders, because new files need a link.
linked := $(compiled) $(shell find python models export -type d -not -name __pycache__)
installed := $(if $(wildcard $(stamps)/dev),dev,build)
c_sources := $(shell find custom_op python examples tests/fake_driver tests/op_library -name '*.cc' -o -name '*.h' -o -name '*.cuh')

# Parallel tests: three without a card, also on two cores, because some tests wait. With a card one for each 6 GB of its
# memory, at most eight and at most one for each core; tests that measure time or fill the memory run afterwards, one by
# one. Without pytest-xdist in PYTHON, all tests run one by one.
has_card := $(wildcard /dev/nvidia[0-9]* /dev/dxg)
total_memory = nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null
parallel_tests = $(if $(has_card),$(shell $(total_memory) | awk -v most=$$(nproc) \
  'NR == 1 {n = int($$1 / 6000)} END {if (n > most) n = most; if (n > 8) n = 8; print n < 1 ? 1 : n}'),3)
parallel = $(shell $(python) -c 'import xdist' 2>/dev/null && printf '%s' '-n $(parallel_tests) --dist worksteal')
one_by_one = alone or large
# Parallel tests share the cores: otherwise NumPy and PyTorch start a thread for each core in every process, and these
# threads spin while they wait. Freed memory stays with the process: page faults of new memory took a fifth of the time
# of session tests. glibc before 2.36 does not support such large thresholds.
malloc_settings = $(shell getconf GNU_LIBC_VERSION | awk '$$2 >= 2.36 {print "MALLOC_MMAP_THRESHOLD_=500000000 MALLOC_TRIM_THRESHOLD_=2000000000"}')
shared_cores = $(if $(parallel),OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(malloc_settings))

.PHONY: all help dev compare check single_parts test test-all extended instruction_sets tables wheel lint docs \
  sanitize clean changed_options
.DELETE_ON_ERROR:

all: $(stamps)/$(installed)

# A line for each target that is meant for users.
help:
	@echo 'make            build the library, install the package into .venv'
	@echo 'make compare    build, then compare ece408-2019fa with the default provider'
	@echo 'make test       build, then run the tests; those marked gpu need a card'
	@echo 'make test-all   run the other tests: fuzzing, packages, PyTorch, old versions and CPUs, sanitizers'
	@echo 'make check      check style, run unit tests and tests of single ops: about a minute'
	@echo 'make dev        build so that edits of Python files take effect at once'
	@echo 'make lint       check style and types'
	@echo 'make docs       make the site of docs/ in build/site; check links and anchors'
	@echo 'make sanitize   test the compiled code with sanitizers of the compiler'
	@echo 'make wheel      make a wheel with the generic kernels for every card from 7.5 on'
	@echo 'make tables     measure and write all tables; needs a card and takes hours'
	@echo 'make clean      delete build files and environments'
	@echo
	@echo 'PYTHON=python3.12 uses another Python, PYTHON_ENV=system no virtual environment, CXX=g++-12 another compiler.'

dev: $(stamps)/dev

compare: all
	$(python) -m convswap.cli compare ece408-2019fa

check: all $(stamps)/lint
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint single_parts

single_parts: all
	$(shared_cores) $(python) -m pytest $(parallel) -m 'not (slow or extended)' tests/unit tests/op

# Argument: an expression of markers. With a card some tests run afterwards, one by one; pytest exits with 5 if none is
# selected.
ifeq ($(has_card),)
run_tests = @$(shared_cores) $(python) -m pytest $(parallel) -m '$(1)'
else
run_tests = @$(shared_cores) $(python) -m pytest $(parallel) -m '($(1)) and not ($(one_by_one))'; together=$$?; \
  $(python) -m pytest -m '($(1)) and ($(one_by_one))'; case $$? in 0 | 5) exit $$together ;; *) exit 1 ;; esac
endif

test: all
	$(call run_tests,not extended)

test-all: extended instruction_sets sanitize

# The CPU kernels choose the best instruction set of the processor, so older ones are tested by a limit. CUDA kernels do
# not depend on the limit.
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
	@if command -v actionlint >/dev/null; then actionlint; fi

# Not --quiet, which would hide warnings from the strict mode.
docs: $(stamps)/docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build
	@echo 'Open build/site/index.html'

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

$(stamps)/docs: $(stamps)/packages
	@sh tools/set_up.sh docs
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
