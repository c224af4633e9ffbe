# make demo: train, evaluate and report on real digits in a few minutes. make test: everything that CI checks.
# make docs: the documentation site, site/index.html. make dist: the package that is published, dist/.
# make tree: renew the table and the tree of files in docs/design.md.
# make look: screenshots of the reports in a headless browser, if there is one.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

.PHONY: demo test docs dist tree look format clean

demo: $(INSTALLED)
	rm -rf demo
	$(BIN)/mrboost train at --data digits --out demo/at --device cpu
	$(BIN)/mrboost train at-mce --data digits --out demo/at-mce --device cpu
	$(BIN)/mrboost train mrboost --data digits --rounds 3 --epochs 10 --out demo/mrboost --device cpu
	$(BIN)/mrboost evaluate demo/at --device cpu
	$(BIN)/mrboost evaluate demo/at-mce --device cpu
	$(BIN)/mrboost evaluate demo/mrboost --device cpu
	$(BIN)/mrboost report demo/at demo/at-mce demo/mrboost --out demo/report.html --device cpu

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/check.py
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

docs: $(INSTALLED)-docs
	rm -rf site
	$(BIN)/python docs/pages.py
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going -c docs -d build/doctrees \
		build/pages site

dist: $(INSTALLED)-dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

tree: $(INSTALLED)
	$(BIN)/python docs/house.py --write
	$(BIN)/python docs/check.py
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/test_design.py

look: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python docs/look.py

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv demo build dist site look .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mrboost needs Python 3.11 or later, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 …")'
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[dev]'
	touch $@

$(INSTALLED)-%: $(INSTALLED)
	$(INSTALL) '.[$*]'
	touch $@
