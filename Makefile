# Everything a person or CI runs. `make install` builds a virtual environment in .venv; the other targets use it.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test slow cluster durations check audit house faults odd bench bench-finetuning site clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,hf,public,export,serve,slurm,optimizers,tensorboard]"
	touch $(STAMP)

install: $(STAMP)

demo: $(STAMP)  ## the main job on embedded data, from text to a judged table: what both sides and the next sentence teach
	$(BIN)/clozelab reproduce two_sides scale=dials data_dir=data/dials

test: $(STAMP)  ## the test suite (what CI runs), a process more than there are cores, at most five; longer evidence: make slow, pytest -m odd tests/fuzz; pages in chromium: pytest -m browser; real engines: make cluster
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )) --maxprocesses 5 --dist loadfile --no-loadscope-reorder

slow: $(STAMP)  ## the longer evidence, which CI leaves out: once a week, in one process (hours; CONTRIBUTING.md)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow --timeout 3600 --durations 15

cluster: $(STAMP)  ## every stage on a real Slurm of one node and a real Ray of two, started on this machine (some minutes; docs/clusters.md)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m cluster tests/cluster -rs

durations: export CLOZELAB_DURATIONS = tests/durations.md
durations: test  ## the test suite, and how long each of its files took, in tests/durations.md

check: $(STAMP)  ## format, lint, types, import contract, habits
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/house.py

audit:  ## known vulnerabilities of the pinned versions; says so and passes where the advisories cannot be asked
	.ci/audit

house:  ## how large and how deep the code is, and habits that may only become rarer (WRITE=1: keep what has)
	$(PYTHON) benchmarks/house.py $(if $(WRITE),--write)

faults: $(STAMP)  ## faults in real trainings, and docs/reliability.md's table of them (two to eight minutes; LONG=1: each one more often)
	$(BIN)/python benchmarks/faults.py $(if $(LONG),--long)

odd: $(STAMP)  ## odd folders and files through load, predict, embed, finetune and prepare, and docs/reliability.md's table of them (some minutes)
	$(BIN)/python -m tests.fuzz

bench: $(STAMP)  ## speed, memory and overhead beside the peers, in one interleaved run (its first two of five sizes took 16 minutes on two slow cores)
	$(BIN)/python benchmarks/bench.py

bench-finetuning: $(STAMP)  ## the same for fine-tuning; needs real task files (CLOZELAB_SHARED)
	$(BIN)/python benchmarks/finetuning.py

site: $(STAMP)  ## the documentation as a site in site/index.html, with search; opens from the disk, without a network
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:  ## the environment; run folders stay (`clozelab gc` is for those)
	rm -rf $(VENV)
