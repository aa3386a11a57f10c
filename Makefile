# Each target makes its own virtual environment; only Python 3.11+ and make are needed.
PYTHON ?= python3
VENV ?= .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt

.PHONY: help docs demo test coverage check fast format lint types imports clean

help:
	@echo "make demo    build a real model, and ask it on the CPU EP and on OpenVINO"
	@echo "make test    every test"
	@echo "make coverage  every test, and which lines they ran (takes twice as long)"
	@echo "make check   format, lint, types, import directions, fast tests (none that loads OpenVINO)"
	@echo "make format  rewrite the sources in the project's format"
	@echo "make docs    write the pages of docs/ that are made of code: findings, and the report"

$(BIN)/python:
	$(PYTHON) -c "import sys; sys.exit('Python 3.11 or newer is needed, this is ' + sys.version) if sys.version_info < (3, 11) else None"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml requirements/constraints.txt | $(BIN)/python
	$(PIP) -e ".[openvino,report]"
	@touch $@

$(VENV)/.dev: pyproject.toml requirements/constraints.txt | $(BIN)/python
	$(PIP) -e ".[openvino,dev]"
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/python scripts/demo.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 $(ARGS)

coverage: $(VENV)/.dev
	$(BIN)/python -m pytest --cov --cov-report= -n 2 $(ARGS)
	$(BIN)/python -m coverage report

check: lint types imports fast

docs: $(VENV)/.dev
	$(BIN)/python scripts/write_findings.py
	$(BIN)/python scripts/write_report_docs.py

format: $(VENV)/.dev
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

lint: $(VENV)/.dev
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .

types: $(VENV)/.dev
	$(BIN)/python -m mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports --no-cache

fast: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not openvino" $(ARGS)

clean:
	rm -rf $(VENV) demo .coverage .mypy_cache .ruff_cache .pytest_cache
