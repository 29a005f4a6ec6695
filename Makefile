# Two words: `make demo` solves an instance and shows the design; `make test` runs every check.
# Needs make and Python 3.11 or newer; another interpreter: `make demo PYTHON=python3.12`.

PYTHON ?= python3
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip -qq --disable-pip-version-check

.PHONY: demo test
.DEFAULT_GOAL := demo

demo: .venv/installed
	@# 3 says that the limit came before the asked gap: the design is verified and its proven gap is printed.
	@$(BIN)/codesign solve instances/reference/llama3-70b-under-30m.yaml --out demo || [ $$? -eq 3 ]
	@echo && echo "Written:" && ls demo/*

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict codesign
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -n 2

# Both installs are editable, so only the dependencies can grow stale: pyproject.toml alone makes them run again.
.venv/installed: pyproject.toml .venv/created
	@echo "Installing codesign into .venv ..."
	@$(PIP) install --editable .
	@touch $@

.venv/installed-dev: pyproject.toml .venv/created
	@echo "Installing codesign and its checks into .venv ..."
	@$(PIP) install --editable '.[dev]'
	@touch $@ .venv/installed

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is not Python 3.11 or newer; name one that is: make $(MAKECMDGOALS) PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv .venv
	@touch $@
