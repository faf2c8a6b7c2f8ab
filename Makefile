# Every target sets itself up on a fresh machine; a second call sets nothing up again.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/ready

# The files of slow tests come first by their names, and are begun first. A test that hangs ends its worker, and is not run
# again by another one.
TEST := $(RUN) -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
ARC := $(addprefix tests/models/arc/,prompt/test_encoder.py policy)
LIQUID := $(addprefix tests/models/liquid/,cells continual plasticity spiking test_losses.py test_network.py)
TRIALS := arc/test_task.py $(addprefix liquid/test_,continual.py distributed.py plasticity.py task.py) update
NUMERICAL := $(ARC) $(LIQUID) tests/models/lm tests/trainables/lm $(addprefix tests/trainables/,$(TRIALS))
TWO_THREADS := OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive # a thread that waits must not keep a core from another test
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE # some images set it, and then each process of the tests compiles all that it imports

.PHONY: search test test-all lint bench gpu docs

search: $(READY)
	$(RUN) search/run.py arc --confirm 24

test: $(READY)
	$(TEST) -m "not slow"

# What `make test` leaves out: what needs long, and numerical tests with other instructions and numbers of threads.
test-all: $(READY)
	$(TEST) -m slow
	ATEN_CPU_CAPABILITY=default $(TWO_THREADS) $(TEST) -m "not slow" $(NUMERICAL)
	if grep -sq avx512f /proc/cpuinfo; then ATEN_CPU_CAPABILITY=avx2 $(TEST) -m "not slow" $(NUMERICAL); fi

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# What needs no GPU, in less than 40 minutes on two quiet cores; writes the tables of figures in docs/.
bench: $(READY)
	$(RUN) benchmarks/bench.py

# The documentation as a site in site/, with links checked.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --config-file deploy/mkdocs.yml

# What needs a GPU, in calls of at most ten minutes: call it again until nothing is left. Writes docs/development/gpu.md.
gpu: $(READY)
	$(RUN) benchmarks/gpu/bench_gpu.py

# pip compiles nothing, since Python compiles and keeps what is imported, and that is a fifth of the files.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --disable-pip-version-check --quiet --no-compile --requirement requirements.lock
	$(RUN) -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	touch $@
