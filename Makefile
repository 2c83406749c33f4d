# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check test-slow docs pictures wrap wheel clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedsift needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[flower,deploy,live,dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/fedsift demo

check: $(READY)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest -n 2 --dist loadscope -q -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -q -m "slow or hypothesis"

docs: $(READY)
	$(BIN)/python -m zensical build --strict

# Trains the runs that the pages show and takes their pictures anew; needs Chromium and chromedriver.
pictures: $(READY)
	$(BIN)/python -m tests.docs.pictures

# Fills the prose of all pages at the one width that the tests ask for.
wrap: $(READY)
	$(BIN)/python -m tests.docs.wrap $$(git ls-files '*.md' ':!tests')

wheel: $(READY)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
