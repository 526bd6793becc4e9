# Every target makes its own environment: nothing is needed but Python, make and a package index.
#
#   make quickstart   fetch real data and run examples/quickstart.py
#   make test         checks and the whole test suite: about 12 minutes on two cores
#   make test-fast    checks and the quick tests: under 3 minutes
#   make test-all     the same, and all of Dask's own DataFrame suites with the plugin on
#   make test-faults  workers killed in each step of a query, 20 times each: about 10 minutes
#   make test-oldest  the tests of what touches Dask, on the oldest Dask that is supported
#   make lint         checks only
#   make docs         documentation, into docs/_build/html
#   make dist         source archive and wheel, into dist/
#   make cubins       machine code of common queries for that wheel: half an hour on two cores
#   make warm         compile the kernels of common queries: WARM_ARGS="--architecture sm_90"
#   make sanitize     every kernel under compute-sanitizer: needs a GPU, cuDF and the CUDA toolkit
#   make bench        plugin against stock Dask, by benchmarks/host.py
#
# PYTHON picks the interpreter of a new environment (make PYTHON=python3.12 quickstart), JOBS the
# number of test processes, PYTEST_ARGS, BENCH_ARGS and WARM_ARGS are handed on.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=
WARM_ARGS ?=
SANITIZE_ARGS ?=

BIN := $(VENV)/bin

# Those of Dask's own suites that have group-bys, shipped in its wheel, run with the plugin on; a run
# that plans less than 99 % of the aggregations fails. `test` leaves out the tests of these suites
# without a group-by, `test-all` runs all suites: 10,000 tests, of which those that stock Dask fails
# on this machine do not count.
UPSTREAM := dask.dataframe.tests.test_groupby \
  $(addprefix dask.dataframe.dask_expr.tests.test_,groupby partitioning_knowledge merge distributed)

# Slow tests (compiling every kernel) lie in few files: a process without work takes from the others.
PYTEST := python -m pytest tests -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

# The oldest release that dask_gpuagg/frontend/activation.py admits, and what is run there: whatever touches
# Dask's internals, and Dask's own group-by tests of that release
OLDEST := 2025.5.0
OLDEST_TESTS := tests/test_explain.py tests/planning/test_nodes.py \
  $(addprefix tests/frontend/test_,activation.py hook.py extended.py results.py partitioned_by.py)

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-fast test-all test-faults test-oldest lint docs dist cubins warm sanitize
.PHONY: bench clean distclean

help:
	@sed -n 's/^#   //p' Makefile

quickstart: $(VENV)/.stamp-examples
	@echo "Data into data/ where it is not there yet, then each query with the plugin and by stock Dask."
	$(BIN)/python examples/quickstart.py

# The times as measured on two cores without a GPU; tests/conftest.py says what test-fast leaves out.
test: lint
	@echo "About 12 minutes on two cores: 8 for our tests, 4 for Dask's own with the plugin on."
	@echo "make test-fast takes under 3."
	$(BIN)/$(PYTEST)
	$(BIN)/python -m tests.upstream --group-by -n $(JOBS) $(UPSTREAM)

test-fast: lint
	GPUAGG_HYPOTHESIS=fast $(BIN)/$(PYTEST) -m "not slow and not device"

test-all: lint
	$(BIN)/$(PYTEST)
	$(BIN)/python -m tests.upstream -n $(JOBS)

test-faults: $(VENV)/.stamp-test
	GPUAGG_KILLS=20 $(BIN)/python -m pytest tests/cluster/test_killed.py tests/cluster/test_faults.py $(PYTEST_ARGS)

test-oldest: $(VENV)-oldest/.stamp-oldest
	$(VENV)-oldest/bin/python -m pytest $(OLDEST_TESTS) -n $(JOBS) $(PYTEST_ARGS)
	$(VENV)-oldest/bin/python -m pytest -c tests/upstream/pytest.ini --rootdir tests/upstream \
	  -p tests.upstream.plugin -p no:cacheprovider -W ignore -q -n $(JOBS) \
	  --pyargs dask.dataframe.dask_expr.tests.test_groupby

lint: $(VENV)/.stamp-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

docs: $(VENV)/.stamp-docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# a release has them; `make dist` puts them into the wheel
cubins: $(VENV)/.stamp-test
	rm -rf dask_gpuagg/cubins
	$(BIN)/python -m dask_gpuagg warm --all --pack dask_gpuagg/cubins \
		--architecture sm_80 --architecture sm_90 --architecture sm_100 $(WARM_ARGS)

# the wheel is made of the checkout; tests/test_wheel.py makes it of the source archive too
dist: $(VENV)/.stamp-test
	rm -rf dist
	$(BIN)/python -m hatchling build

# the extra `test` brings NVIDIA's compiler
warm: $(VENV)/.stamp-test
	$(BIN)/python -m dask_gpuagg warm $(WARM_ARGS)

# in an environment that has RAPIDS: PYTHON=... names its interpreter; SANITIZE_ARGS="memcheck" one tool
sanitize:
	$(PYTHON) -m tests.sanitize $(SANITIZE_ARGS)

bench: $(VENV)/.stamp-bench
	$(BIN)/python -m benchmarks.host $(BENCH_ARGS)

# The stamp, not the directory, says that an environment is whole: an interrupted run leaves none.
$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	  sys.exit("Python 3.11 or newer is needed, this is %d.%d; try make PYTHON=..." % v) \
	  if v < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# One stamp per extra; a change of the requirements or of the version installs again.
$(VENV)/.stamp-%: pyproject.toml dask_gpuagg/_version.py $(VENV)/.stamp-venv
	@echo "Installing dask-gpuagg with its extra '$*' into $(VENV): a minute or two, once."
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@

# An environment of its own. pip would take the newest Dask that the requirements admit.
$(VENV)-oldest/.stamp-oldest: Makefile pyproject.toml dask_gpuagg/_version.py
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --editable . "dask[dataframe]==$(OLDEST)" \
	  "distributed==$(OLDEST)" hypothesis pytest pytest-rerunfailures pytest-xdist
	@touch $@

clean:
	rm -rf build dist docs/_build docs/_generated docs/kernels .pytest_cache .mypy_cache .ruff_cache .hypothesis

distclean: clean
	rm -rf $(VENV) $(VENV)-oldest data
