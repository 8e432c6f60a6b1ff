# One command each: `make demo` tunes a real network, `make test` runs the tests. CI calls the same targets.

PYTHON ?= python3.11
PYTHONS ?= $(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
NETWORK ?= zoo:mobilenet_v2
BUDGET ?= 4min
STUDY_OPTIONS ?=
PROCESSES ?= 3
NETWORKS ?= zoo:resnet18 zoo:mobilenet_v2 zoo:bert-small

# The tests start a server of their own; this only brings its programs.
POSTGRES := $(firstword $(wildcard /usr/lib/postgresql/*/bin/initdb) $(shell command -v initdb))
ROOT := $(if $(filter-out 0,$(shell id -u)),sudo)

.PHONY: setup postgres opencl demo test test-fast test-slow test-ray test-net test-hostile test-browser test-arm test-iree test-python lint format bench bench-stock bench-networks bench-budgets \
  conformance graphs odd-forms clean

setup: $(STAMP)

# The stamp is written last, so a set-up that was cut short is done again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c '' 2>/dev/null || { \
	  echo "error: there is no $(PYTHON) that runs; install Python 3.11 (Debian, Ubuntu: apt-get install python3.11 python3.11-venv)," \
	       "or say where it is: make $(MAKECMDGOALS) PYTHON=PATH" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is older than Python 3.11; say where a newer one is: make $(MAKECMDGOALS) PYTHON=PATH" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) lacks the module venv; install it (Debian, Ubuntu: apt-get install $(PYTHON)-venv)" >&2; exit 2; }
	@echo "setting up $(VENV) (once; 1.6 GB on disk): a virtual environment, then the packages of pyproject.toml's extra dev"
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

postgres:
	@test -n "$(POSTGRES)" || { $(ROOT) apt-get update -q && $(ROOT) env DEBIAN_FRONTEND=noninteractive \
	  apt-get install -q -y --no-install-recommends postgresql; }

# A device of OpenCL for the tests of it, which are skipped without one.
opencl:
	@ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1 || { $(ROOT) apt-get update -q && $(ROOT) env DEBIAN_FRONTEND=noninteractive \
	  apt-get install -q -y --no-install-recommends pocl-opencl-icd ocl-icd-libopencl1; }

demo: setup
	@mkdir -p out
	@echo "tuning $(NETWORK), compiling it and comparing it with ONNX Runtime, in $(BUDGET)"
	$(BIN)/tunery tune $(NETWORK) --budget $(BUDGET) -o out --against untuned,onnxruntime

# Each file in one process: its tests share what is costly to make. They begin in the order that tests/conftest.py gives.
BY_FILE := --dist loadfile --no-loadscope-reorder

# Tests wait for a third of their time, so there are more processes than cores. They take each other's cores, which some
# notice: what fails is run again alone, and has to pass there.
test: setup
	$(BIN)/pytest -m "not slow and not hostile and not browser" -n $(PROCESSES) $(BY_FILE) || \
	  $(BIN)/pytest -m "not slow and not hostile and not browser" --last-failed --last-failed-no-failures none

# Of every room what needs neither the compiler nor a server nor whole jobs, with fewer random examples.
test-fast: setup
	$(BIN)/pytest -m "not tvm and not jobs and not postgresql and not slow and not hostile and not browser" \
	  --hypothesis-profile fast -n $(PROCESSES) $(BY_FILE)

# What `make test` leaves out: other tests there cover its subject more cheaply.
test-slow: setup
	$(BIN)/pytest -m "slow and not ray and not net"

# A Ray cluster of three nodes on this machine, which the tests start and end; installs Ray (260 MB).
test-ray: setup
	$(BIN)/pip install --disable-pip-version-check 'ray>=2.60'
	$(BIN)/pytest -m ray

# Machines of network namespaces, each with an sshd, whose networks, servers, agents, disks and clocks fail while jobs
# run; ten minutes, as root. What is missing is said.
test-net: setup
	$(BIN)/pytest -m net

# Attacks on the whole, by faults and by users that mean harm; they hurt neither the machine nor the user's files.
test-hostile: setup
	$(BIN)/pytest -m "hostile or attack" -n 2 --durations 10

# The dashboard in Chromium, which is installed where it is missing.
test-browser: setup
	@command -v chromium >/dev/null || { $(ROOT) apt-get update -q && $(ROOT) env DEBIAN_FRONTEND=noninteractive \
	  apt-get install -q -y --no-install-recommends chromium; }
	$(BIN)/pytest -m "browser and not slow" -n 2 --dist load

ENVIRONMENTS = -c 'from tunery._settings import environments_directory as at; print(at())'

# The dialect iree: makes its environment below the user's data directory (1 GB), then runs what needs it.
test-iree: setup
	$(BIN)/tunery dialects install iree
	TUNERY_TEST_IREE="$$($(BIN)/python $(ENVIRONMENTS))" $(BIN)/pytest -m iree

# ARM end to end, on an emulated machine that is made once, in the user's cache directory (800 MB, from Debian and Python's
# index); it needs gcc-aarch64-linux-gnu, and is no part of `make test`.
test-arm: setup
	TUNERY_TEST_ARM="$$($(BIN)/python tests/arm/emulated.py --place)" && export TUNERY_TEST_ARM && \
	  TUNERY_TEST_IREE="$$($(BIN)/python $(ENVIRONMENTS))" $(BIN)/pytest tests/arm -n 2

# The fast tests with another Python, in a virtual environment of its own: make test-python PYTHON=python3.12
test-python:
	@$(MAKE) --no-print-directory test-fast PYTHON=$(PYTHON) VENV=.venv-$(notdir $(PYTHON))

# What needs torch, in an environment of its own with its build for CPUs.
.PHONY: test-torch wheel test-runtime
test-torch: setup
	test -x .venv-torch/bin/pip || $(BIN)/python -m venv .venv-torch
	$(BIN)/python -c 'import site; print("import site; site.addsitedir(%r)" % site.getsitepackages()[0])' \
	  > "$$(.venv-torch/bin/python -c 'import site; print(site.getsitepackages()[0])')/tunery.pth"
	.venv-torch/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 'onnxscript>=0.7'
	.venv-torch/bin/python -m pytest tests/models/test_torch_programs.py tests/delivery/test_torch_module.py \
	  tests/delivery/test_runtime_only.py

# Models of others: fetched, exported with random weights in an environment of its own (1.5 GB), compiled and compared; about
# 100 files, which takes an hour. REAL_OPTIONS='--budget 60s --sample 4' tunes every fourth one first; it goes on after a stop.
REAL_OPTIONS ?= --compile
.PHONY: real-models
real-models: setup
	test -x .venv-exports/bin/pip || $(PYTHON) -m venv .venv-exports
	.venv-exports/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 'onnxscript>=0.7' torchvision timm transformers skl2onnx onnxruntime
	.venv-exports/bin/python benchmarks/real_exports.py out/real/exports || true
	$(BIN)/python benchmarks/real_models.py --directory out/real $(REAL_OPTIONS)

# What users export today, and whether it is compiled and right: a table.
.PHONY: exports
exports: setup
	test -x .venv-exports/bin/pip || $(PYTHON) -m venv .venv-exports
	.venv-exports/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 torchvision==0.28.0 timm==1.0.31 \
		transformers==5.24.0 diffusers==0.42.1 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0 \
		onnxconverter-common==1.16.0 scikit-learn==1.9.1 skl2onnx==1.20.0 lightgbm==4.7.0 onnxmltools==1.16.0
	.venv-exports/bin/python benchmarks/exports.py --make out/exports || true
	$(BIN)/python benchmarks/exports.py out/exports

# Small models of special values, built and judged by what ONNX Runtime computes of them without its optimiser; the table is
# printed. VALUES_OPTIONS='--sample 3' takes every third one, a part of a name those whose names hold it.
.PHONY: values
values: setup
	$(BIN)/python tests/helpers/value_models.py out/values
	$(BIN)/python benchmarks/values.py out/values $(VALUES_OPTIONS)

# The wheel that runs compiled files by itself, and asks a service: make wheel PLATFORM=manylinux_2_28_aarch64
wheel: setup
	$(BIN)/python tools/runtime_wheel.py -o dist $(if $(PLATFORM),--platform $(PLATFORM))

# That wheel without extras in an environment of its own: what is in it, how large it is, and a network that runs there;
# with several Pythons: make test-runtime PYTHONS="python3.11 python3.12 python3.13"
test-runtime: wheel
	@mkdir -p out
	test -f out/runtime.tunery || $(BIN)/tunery compile zoo:mobilenet_v2 -o out/runtime.tunery
	for python in $(PYTHONS); do \
	  rm -rf .venv-runtime && $$python -m venv .venv-runtime && \
	  .venv-runtime/bin/pip install --quiet --disable-pip-version-check dist/tunery-*.whl && \
	  .venv-runtime/bin/pip list --disable-pip-version-check && du -sh .venv-runtime && \
	  .venv-runtime/bin/python examples/run.py out/runtime.tunery && \
	  .venv-runtime/bin/pip install --quiet --disable-pip-version-check "$$(ls dist/tunery-*.whl)[client]" && \
	  .venv-runtime/bin/tunery inspect out/runtime.tunery || exit 1; \
	done

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Whole networks, as tuned so far on this machine, against their rivals.
bench: setup
	@for network in $(NETWORKS); do $(BIN)/tunery bench $$network --against untuned,onnxruntime || exit 1; done

# Stock MetaSchedule and tunery, same tasks, same trials, side by side.
bench-stock: setup
	$(BIN)/python benchmarks/stock.py

# Whole networks on a cold store, within BUDGET each, against ONNX Runtime.
bench-networks: setup
	$(BIN)/python benchmarks/networks.py --budget $(BUDGET)

# Whether budgets of time are kept, quiet and beside two busy processes: BUDGETS='--budgets 10s --beside 2'
bench-budgets: setup
	$(BIN)/python benchmarks/budgets.py $(BUDGETS)

# ONNX's own operator tests, compiled and run; a table by operator.
conformance: setup
	$(BIN)/python benchmarks/conformance.py

# Random graphs of some hundred operators, on special values, compared with ONNX Runtime: GRAPHS='--count 200 --seed 7'
graphs: setup
	$(BIN)/python tests/helpers/random_graphs.py $(GRAPHS)

# Random attributes of operators, compiled and compared with ONNX Runtime: a quarter of an hour.
odd-forms: setup
	$(BIN)/pytest -m slow tests/dialects/test_metaschedule_odd_forms.py

# What each way of saving saves on three dialects and two kinds of device; goes on where it was interrupted.
.PHONY: study-across
study-across: setup
	$(BIN)/python benchmarks/across.py $(STUDY_OPTIONS)

# A study of prior work re-run on this machine, with STUDY_OPTIONS: make study-scheduling, study-measurement,
# study-trimming, study-zero-shot, study-stock, study-suite. Each goes on where it was interrupted.
study-%: setup
	$(BIN)/python benchmarks/study.py $* $(STUDY_OPTIONS)

clean:
	rm -rf $(VENV) .venv-* build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
