# What one does in this repository. `make demo` and `make test` need Python >= 3.11 and nothing else.

PYTHON ?= python3
BIN    := .venv/bin
PEERS  := .venv-peers/bin
DEVICE ?= cuda
WITH_DATA := accuracy bulk dense distillation faithfulness predicting pretraining serving serving_plain your_own  # benchmarks that are told of what
BENCH  ?= $(filter-out harness gpu $(WITH_DATA),$(patsubst benchmarks/%.py,%,$(wildcard benchmarks/*.py)))

# real data for the tests that ask for it: what the caller names, else the folder beside the checkout if it is there
export VITRAIL_TEST_DATA ?= $(wildcard $(abspath ../shared/data))

# tests as pytest rewrites them are kept beside them: every worker would rewrite all of them anew, for 7 seconds
export PYTHONDONTWRITEBYTECODE :=

# a worker of pytest-xdist for every core; whoever runs out of tests takes some of another's. Files come in the order of
# tests/durations.json, longest first, so that the run ends with short ones
WORKERS := -n auto --dist worksteal
IN_CI   := not peers and not site and not dist and not nightly

.PHONY: help demo test test-all test-nightly test-gpu test-dist durations check bench bench-gpu docs site dist env env-peers \
  test-peers clean
.DELETE_ON_ERROR:

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: .venv/core.done  ## train on digits, end with the path of the report
	$(BIN)/vitrail train digits --out runs/demo

test: .venv/test.done  ## the quick tests
	$(BIN)/python -m pytest $(WORKERS) -m "$(IN_CI) and not slow and not gpu"

test-all: .venv/all.done  ## the slow tests as well; or TESTS="tests/models tests/data"
	$(BIN)/python -m pytest $(WORKERS) -m "$(IN_CI)" $(TESTS)

test-nightly: .venv/all.done  ## simulations, fuzzing and kills by the thousand; a small form of each is in test-all
	$(BIN)/python -m pytest $(WORKERS) -m nightly

test-peers: .venv-peers/peers.done  ## against timm, torchvision and transformers, in the newest torch
	$(PEERS)/python -m pytest $(WORKERS) -m "not nightly" tests/peers tests/test_torch_private.py

dist: .venv/test.done  ## dist/: the source archive, and the wheel that is built from it
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist >/dev/null

test-dist: dist  ## install them into empty environments: alone, with each extra, and with the lowest versions of all packages
	$(BIN)/python -m pytest -m dist tests/test_packaging.py

durations: .venv/all.done .venv-peers/peers.done  ## renew tests/durations.json, by which the files of tests are ordered
	$(BIN)/python -m pytest $(WORKERS) -m "$(IN_CI)" --write-durations
	$(PEERS)/python -m pytest $(WORKERS) -m peers tests/peers --write-durations

test-gpu: .venv-peers/peers.done  ## on a GPU; DEVICE=cpu rehearses it
	VITRAIL_TEST_DEVICE=$(DEVICE) $(PEERS)/python -m pytest -m gpu tests/gpu

check: .venv/test.done  ## lint, format, types, layout
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyrefly check
	$(BIN)/python -m pytest -q tests/test_layout.py
	@$(BIN)/python -m tests.test_layout

docs: site  ## the site, and the code, commands and links of every page
	$(BIN)/python -m pytest tests/test_pages.py

site: .venv/docs.done  ## docs/_build/html, every tutorial run; warnings are errors
	rm -rf docs/_build
	$(BIN)/python -m sphinx -nW --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python -m pytest -m site tests/docs

bench: .venv-peers/peers.done  ## the benchmarks that need no data, or BENCH="one two"
	set -e; for name in $(BENCH); do $(PEERS)/python benchmarks/$$name.py; done

bench-gpu: .venv-peers/peers.done  ## the GPU's figures in nine minutes, or DEVICE=cpu to rehearse
	$(PEERS)/python benchmarks/gpu.py --device $(DEVICE) $(if $(CIFAR10),--cifar10 $(CIFAR10))

env: .venv/all.done  ## everything: tests, the documentation and all extras
env-peers: .venv-peers/peers.done  ## the second environment, with the peers

clean:  ## remove both environments, and dist/
	rm -rf .venv .venv-peers dist

# A stamp is current while it is newer than what it was made from. Each is one call of pip, for all that the smaller ones
# bring too. Modules are compiled when they are first imported: most of what is installed never is.
PIP := -m pip install --quiet --no-compile

.venv/bin/python .venv-peers/bin/python:
	$(PYTHON) -m venv $(@D)/..
	$@ -m pip install --quiet --upgrade 'pip>=25.1'  # learned --group in 25.1; that of a fresh environment may be older

.venv/core.done: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python $(PIP) -c constraints.txt -e .
	@touch $@

.venv/test.done: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python $(PIP) -c constraints.txt -e '.[all]' --group test
	@touch $(addprefix .venv/,core.done test.done)

.venv/docs.done: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python $(PIP) -c constraints.txt -e '.[all]' --group test --group docs
	@touch $(addprefix .venv/,core.done test.done docs.done)

.venv/all.done: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python $(PIP) -c constraints.txt -e '.[all,ray]' --group test --group docs
	@touch $(addprefix .venv/,core.done test.done docs.done all.done)

.venv-peers/peers.done: pyproject.toml constraints-peers.txt | .venv-peers/bin/python
	$(PEERS)/python $(PIP) -c constraints-peers.txt -e '.[data]' --group peers
	@touch $@
