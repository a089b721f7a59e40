# All set-up is done here: `make demo` and `make test` are enough on a fresh machine with Python 3.10 or later.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

.PHONY: install demo test test-fast test-matrix fuzz dist dist-test tutorials lint format docs bench clean

install: $(VENV)/.installed

# torch comes first and alone: its exact version is what has a CPU build at hand
$(VENV)/.library: pyproject.toml constraints.txt $(wildcard setup.py pyro_vgpds/*/*.c pyro_vgpds/*/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==$(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed: $(VENV)/.library
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[data,video,dev]'
	touch $@

# Needs the library only, not what tests and tutorials need.
demo: $(VENV)/.library
	$(BIN)/python -m pyro_vgpds demo --output demo_output

# With worksteal, neighbouring tests run in one process, so that a fixture of a module is made once.
test: install
	$(BIN)/python -m pytest -n 2 --dist worksteal tests

# Without those that train for long or start processes: about three minutes on two cores.
test-fast: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not long" tests

# The quick tests with the oldest and the newest Python, torch, numpy and pandas, without AVX and without C, each in an
# environment of its own. What is not available is skipped with the reason. MATRIX="--only oldest --python 3.10=PATH" chooses,
# MATRIX=--allow-cuda also takes builds of torch with CUDA, which are gigabytes, if no build for CPUs is found.
test-matrix:
	$(PYTHON) tests/matrix.py $(MATRIX)

# Random problems, trained, predicted, saved and loaded; prints the seeds that fail. Then all values for each argument of
# each public function, mutated files, and processes that are killed while they write. `make test` has a short part of it.
FUZZ_FIRST ?= 0
FUZZ_COUNT ?= 2000
# mutated files of each kind: 16 times as many in all
FUZZ_FILES ?= 320
# kills of each kind of writer: 5 times as many in all
FUZZ_KILLS ?= 60
FUZZ_SECONDS ?= 3600
fuzz: install
	$(BIN)/python tests/fuzz/fuzz_problems.py --first $(FUZZ_FIRST) --count $(FUZZ_COUNT) --seconds $(FUZZ_SECONDS)
	PYRO_VGPDS_ARGUMENTS=all $(BIN)/python -m pytest -n 2 --dist worksteal tests/test_public_arguments.py
	PYRO_VGPDS_FUZZ=$(FUZZ_FILES) PYRO_VGPDS_KILLS=$(FUZZ_KILLS) $(BIN)/python -m pytest -n 2 --dist worksteal tests/fuzz/test_files.py \
	    tests/fuzz/test_kills.py

# A source distribution, and a wheel that is built from it.
dist: install
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .

# The quick tests of the source distribution, in a new folder, in which the wheel takes the place of the sources.
dist-test: dist
	set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	tar -xzf dist/*.tar.gz -C "$$folder" --strip-components 1; \
	rm -r "$$folder/pyro_vgpds"; \
	$(BIN)/python -m pip install --quiet --no-deps --target "$$folder" dist/*.whl; \
	cd "$$folder"; $(abspath $(BIN))/python -m pytest -n 2 --dist worksteal -m "not long" tests

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
