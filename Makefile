PYTHON ?= python3
BIN := .venv/bin
MIN_EXTRAS := zuko pytest numpydoc pytest-xdist hypothesis polars pyarrow accelerate gudhi ripser scikit-dimension IsoScore
CORE_TESTS := $(addprefix tests/,adapters geometry losses model_selection cli test_heads.py test_metrics.py)
PACKAGES = .venv/lib/python3*/site-packages

# Compiled modules are kept, or each process would compile the thousands that it imports.
export PYTHONDONTWRITEBYTECODE :=

# The tests run on the CPU, and on a pretended GPU; tests/test_devices.py says where.
OFFLINE := CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
PYTEST := $(OFFLINE) $(BIN)/pytest -q -n 2 --dist loadgroup

.PHONY: demo test test-all test-min test-pythons mutations lint docs gallery linkcheck bench bench-test reproduction reproduction-report licenses release-check clean

# One environment for everything, made on first use and again when a version changes. What the demo
# and the tests import is compiled while the rest is installed; the rest when it is imported.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("isoadapt needs Python 3.11 or later, found %d.%d; name one: make PYTHON=python3.11 ..." % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt torch==2.13.0
	$(BIN)/python -m compileall -q -x py312_ $(PACKAGES)/torch & \
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[test,demo]' && wait
	$(BIN)/python -m compileall -q -j 2 -x '/models/(?!auto|bert)' $(PACKAGES)/transformers $(PACKAGES)/sklearn $(PACKAGES)/scipy
	touch $@

# What the site needs besides.
.venv/.docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[docs]'
	touch $@

# What the benchmarks compare with besides.
.venv/.bench: .venv/.installed
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt faiss-cpu
	touch $@

demo: .venv/.installed  ## fine-tune, measure, repair, compare: the main job end to end
	$(BIN)/isoadapt demo --overwrite

lint: .venv/.installed  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## lint, then the tests and doctests, but for the slow ones
	$(PYTEST) --ignore=tests/docs --ignore=tests/benchmarks

test-all: lint .venv/.docs .venv/.bench  ## lint, then every test and doctest, those of docs and benchmarks too
	$(PYTEST) -m 'slow or not slow'

# The lowest versions that pyproject.toml allows, but for torch, in an environment of their own.
.venv-min/.installed: pyproject.toml constraints-min.txt
	$(PYTHON) -m venv .venv-min
	.venv-min/bin/python -m pip install --quiet --no-compile -c constraints-min.txt torch
	.venv-min/bin/python -m pip install --quiet --no-compile -c constraints-min.txt -e . $(MIN_EXTRAS)
	touch $@

test-min: .venv-min/.installed  ## the tests of the core on the lowest versions allowed, but for torch
	$(OFFLINE) .venv-min/bin/pytest -q -n 2 $(CORE_TESTS)

# Other versions of Python, each in an environment of its own.
.venv-3.%/.installed: pyproject.toml constraints.txt
	python3.$* -m venv .venv-3.$*
	.venv-3.$*/bin/python -m pip install --quiet --no-compile -c constraints.txt torch
	.venv-3.$*/bin/python -m pip install --quiet --no-compile -c constraints.txt -e . $(MIN_EXTRAS)
	touch $@

test-pythons: .venv-3.12/.installed .venv-3.13/.installed  ## the tests of the core on Python 3.12 and 3.13
	$(OFFLINE) .venv-3.12/bin/pytest -q -n 2 $(CORE_TESTS)
	$(OFFLINE) .venv-3.13/bin/pytest -q -n 2 $(CORE_TESTS)

mutations: .venv/.installed  ## wrong versions of the library, each of which the tests must catch
	$(BIN)/python tests/mutations.py

docs: .venv/.docs  ## the site in docs/_build/html, without running the gallery, and its tests
	$(BIN)/python -m sphinx -W --keep-going -q -D plot_gallery=0 docs docs/_build/html
	$(PYTEST) tests/docs

gallery: .venv/.docs  ## the site, with every example run on the checkpoint of make demo
	test -d isoadapt-demo/checkpoint || $(BIN)/isoadapt demo --overwrite
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html

linkcheck: .venv/.docs  ## the addresses of other sites, which needs a network
	$(BIN)/python -m sphinx -q -b linkcheck -D plot_gallery=0 docs docs/_build/linkcheck

bench: .venv/.bench  ## every speed figure, as ratios measured in one run
	$(BIN)/python -m benchmarks

bench-test: .venv/.bench  ## the benchmarks on small sizes, and whether tables and records agree
	$(PYTEST) tests/benchmarks

reproduction: .venv/.installed  ## the papers' experiments, for days; when ended, the same command goes on
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false nice -n 19 $(BIN)/python -m benchmarks.reproduction $(OPTIONS)

reproduction-report: .venv/.installed  ## benchmarks/REPRODUCTION.md and its pictures, from the finished cells
	$(BIN)/python -m benchmarks.reproduction --report-only
	$(BIN)/python -m docs.reproduction_pictures

licenses: .venv/.installed  ## LICENSES.md: the licences of all dependencies
	$(BIN)/python tools/licenses.py

release-check: .venv/.installed  ## build wheel and sdist, install the wheel elsewhere, run the README there
	$(BIN)/python tools/licenses.py --check
	$(BIN)/python tools/release_check.py

clean:
	rm -rf .venv .venv-min .venv-3.12 .venv-3.13 docs/_build docs/api docs/gallery
