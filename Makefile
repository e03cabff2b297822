# Everything a developer runs. `make` alone prints this help.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
TESTS ?= tests
WORKERS ?= 4

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this help
	@grep -hE '^[a-z-]+:.*## ' Makefile | sort | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/.run: requirements/run.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "billing_jobs needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Install it and run: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv "$(VENV)"
	"$(BIN)/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/run.txt
	"$(BIN)/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch "$@"

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	"$(BIN)/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/dev.txt
	@touch "$@"

.PHONY: run
run: $(VENV)/.run ## set up, start everything embedded and bill the example book; ARGS="--exit-when-idle --json"
	"$(BIN)/billing-jobs" up $(ARGS)

.PHONY: test
test: check ## set up, then lint, types, contracts and every test, with coverage
	"$(BIN)/python" -m pytest -n $(WORKERS) -m "not timing" --cov --cov-report= $(TESTS) $(ARGS)
	"$(BIN)/python" -m pytest -m timing $(TESTS) $(ARGS)
	"$(BIN)/python" -m coverage report --fail-under=95
	"$(BIN)/python" -m coverage report --fail-under=100 --include='billing_jobs/domain/*,billing_jobs/lifecycle.py'

.PHONY: check
check: $(VENV)/.dev ## lint, format, types, import contracts, spelling, dead code
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy"
	"$(BIN)/lint-imports" --no-cache
	"$(BIN)/codespell"
	"$(BIN)/vulture" billing_jobs --min-confidence 80
	"$(BIN)/deptry" billing_jobs

.PHONY: format
format: $(VENV)/.dev ## rewrite the code in the one style
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

.PHONY: lock
lock: ## renew the hash-pinned requirements (needs uv on the PATH)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --extra embedded --extra flower --output-file requirements/run.txt pyproject.toml requirements/build.in
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --extra embedded --extra flower --extra dev --output-file requirements/dev.txt pyproject.toml requirements/build.in

.PHONY: clean
clean: ## remove the virtual environment and caches (the data directory stays)
	rm -rf "$(VENV)" .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
