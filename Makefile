# All set-up is done here: `make demo` and `make test` are enough on a fresh machine with Python 3.10 or later.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

.PHONY: install demo test test-fast test-slow tutorials lint format docs bench clean

install: $(VENV)/.installed

# torch comes first and alone: its exact version is what has a CPU build at hand
$(VENV)/.installed: pyproject.toml constraints.txt $(wildcard setup.py pyro_vgpds/*/*.c)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==$(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[data,video,dev]'
	touch $@

demo: install
	$(BIN)/python -m pyro_vgpds demo --output demo_output

# All tests except those marked slow, which take minutes each.
test: install
	$(BIN)/python -m pytest -n 2 -m "not slow" tests

# Without those that train for long or start processes: about a minute on two cores.
test-fast: install
	$(BIN)/python -m pytest -n 2 -m "not slow and not long" tests

test-slow: install
	$(BIN)/python -m pytest -m slow tests

# Runs all of them in full, a minute or so each; `make test` runs them small.
tutorials: install
	env -u CI -u MPLBACKEND $(BIN)/python tutorials/_build.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The reference, as pages in docs/_build/html. A warning is an error.
docs: install
	$(BIN)/python -m sphinx --fail-on-warning --quiet -b html docs docs/_build/html

# Set GPY and GPFLOW to Pythons that have those libraries to have them timed in the same run.
bench: install
	$(BIN)/python -m benchmarks.table

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info demo_output .pytest_cache .mypy_cache .ruff_cache
