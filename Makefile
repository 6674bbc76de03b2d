# The verbs of the project. Each needs only Python 3.11 or newer and make: the environment in .venv is made on first use and again
# when a pin or a pyproject.toml changes.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

# Name an interpreter to use that one alone; otherwise the first that is new enough is taken.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
STAMP := $(VENV)/.installed
WORKERS ?= 2
PYTEST_ARGS ?=

# Many tests start programs: what those import is compiled once, whatever the machine says elsewhere.
export PYTHONDONTWRITEBYTECODE :=

MEMBERS := core $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml integrations/*/pyproject.toml)) conformance
PROJECTS := $(addsuffix /pyproject.toml,$(MEMBERS))
DISTRIBUTIONS := $(shell sed -n 's/^name = "\(perdure[a-z-]*\)"$$/\1/p' $(PROJECTS))
SOURCES := $(addsuffix /src,$(MEMBERS))
TESTS := $(wildcard tests $(addsuffix /tests,$(MEMBERS)))
UV := $(shell command -v uv || echo $(BIN)/uv)
PYTEST := $(BIN)/python -m pytest

# Where the machine has no uv, the environment gets one.
ENSURE_UV = if [ "$(UV)" = "$(BIN)/uv" ]; then \
    $(BIN)/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore -r requirements/uv.txt; fi
INSTALL = $(UV) pip install --quiet --python $(BIN)/python

.PHONY: help venv demo test laws soak bench check docs format pins clean

help: ## Show the verbs
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 10

venv: $(STAMP) ## Make the environment and install the workspace

# The environment alone, so that `make pins` works while the pins do not install.
$(READY):
	@if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found=; \
	    for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python); do \
	        if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "perdure needs Python 3.11 or newer; none among: $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python)." >&2; \
	        echo "Name one: make $(or $(firstword $(MAKECMDGOALS)),venv) PYTHON=/path/to/python3.11" >&2; exit 1; \
	    fi; \
	    echo "Making $(VENV) with $$found"; \
	    "$$found" -m venv --clear $(VENV) || \
	        { echo "$$found could not make $(VENV); on Debian and Ubuntu the package python3-venv is needed." >&2; exit 1; }; \
	fi
	@touch $@

$(STAMP): $(READY) requirements/uv.txt requirements/dev.txt pyproject.toml $(PROJECTS)
	@$(ENSURE_UV)
	$(INSTALL) -r requirements/dev.txt
	$(INSTALL) --no-deps --no-build-isolation $(addprefix -e ./,$(MEMBERS))
	@touch $@

demo: $(STAMP) ## Run the demo: a turn that survives a crash
	@$(BIN)/perdure demo

test: $(STAMP) ## Run all tests but the soak tests
	$(PYTEST) -n $(WORKERS) -m "not soak" $(PYTEST_ARGS) $(TESTS)

laws: $(STAMP) ## Run the conformance laws over all stores
	$(PYTEST) -n $(WORKERS) -m "not soak" $(PYTEST_ARGS) tests/test_laws.py

soak: $(STAMP) ## Run the long tests
	$(PYTEST) -m soak $(PYTEST_ARGS) $(TESTS)

# What the benchmarks compare with is no part of the product, so it is installed apart from it.
BENCH := build/bench-environment
BENCH_STAMP := $(BENCH)/.installed
$(BENCH_STAMP): $(STAMP) requirements/bench.txt
	$(BIN)/python -m venv --clear $(BENCH)
	$(UV) pip install --quiet --python $(BENCH)/bin/python -r requirements/bench.txt
	$(UV) pip install --quiet --python $(BENCH)/bin/python --no-deps --no-build-isolation $(addprefix -e ./,core $(wildcard plugins/*) conformance)
	@touch $@

bench: $(BENCH_STAMP) ## Run the benchmarks; QUICK=1 measures little, QUESTIONS="append scale" only these
	$(BENCH)/bin/python -m benchmarks $(if $(QUICK),--quick) $(QUESTIONS)

check: $(STAMP) docs ## Check format, lint, types, import directions and the documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tests.page_types
	$(BIN)/mypy $(SOURCES) $(TESTS) docs/generate conftest.py build/pages
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-logo

docs: $(STAMP) ## Build the documentation in build/site; a link that leads nowhere fails
	$(BIN)/mkdocs build

format: $(STAMP) ## Format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# No option may write where a pin was found: the files hold for every registry and machine.
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links --custom-compile-command "make pins"
pins: $(READY) ## Compile requirements/*.txt from requirements/*.in; UPGRADE=1 takes newer releases
	@$(ENSURE_UV)
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/uv.in -o requirements/uv.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) $(addprefix --no-emit-package ,$(DISTRIBUTIONS)) --all-extras requirements/dev.in $(PROJECTS) -o requirements/dev.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) $(addprefix --no-emit-package ,$(DISTRIBUTIONS)) --constraint requirements/dev.txt requirements/bench.in $(filter-out integrations/%,$(PROJECTS)) -o requirements/bench.txt

clean: ## Remove the environment and everything that the tools left
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
