# Every target sets itself up on a fresh machine; a second call sets nothing up again.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/ready

.PHONY: search test lint bench

search: $(READY)
	$(RUN) search/run.py arc

test: $(READY)
	$(RUN) -m pytest

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: $(READY)
	for script in $$(grep -l __main__ benchmarks/*.py); do echo "== $$script"; $(RUN) $$script || exit 1; done

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --disable-pip-version-check --quiet --requirement requirements.lock
	$(RUN) -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	touch $@
