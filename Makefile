# What one does in this repository. `make demo` and `make test` need Python >= 3.11 and nothing else.

PYTHON ?= python3
BIN    := .venv/bin
PEERS  := .venv-peers/bin
DEVICE ?= cuda
WITH_DATA := accuracy bulk dense distillation faithfulness pretraining serving serving_plain  # benchmarks that are told of what
BENCH  ?= $(filter-out harness gpu $(WITH_DATA),$(patsubst benchmarks/%.py,%,$(wildcard benchmarks/*.py)))

# real data for the tests that ask for it: what the caller names, else the folder beside the checkout if it is there
export VITRAIL_TEST_DATA ?= $(wildcard $(abspath ../shared/data))

# tests as pytest rewrites them are kept beside them: every worker would rewrite all of them anew, for 7 seconds
export PYTHONDONTWRITEBYTECODE :=

# a worker of pytest-xdist for every core; a file stays with one of them, since what a module shares is made once
# the files come in the order of collection, in which the longest are first (tests/conftest.py)
WORKERS := -n auto --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-all test-gpu check bench bench-gpu docs site env env-peers test-peers clean
.DELETE_ON_ERROR:

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: .venv/core.done  ## train on digits, end with the path of the report
	$(BIN)/vitrail train digits --out runs/demo

test: .venv/test.done  ## the quick tests
	$(BIN)/python -m pytest $(WORKERS) -m "not slow and not gpu and not peers and not site"

test-all: .venv/all.done  ## the slow tests as well; or TESTS="tests/models tests/data"
	$(BIN)/python -m pytest $(WORKERS) -m "not peers and not site" $(TESTS)

test-peers: .venv-peers/peers.done  ## against timm, torchvision and transformers, in the newest torch
	$(PEERS)/python -m pytest $(WORKERS) -m peers tests/peers
	$(PEERS)/python -m pytest tests/test_torch_private.py

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

clean:  ## remove both environments
	rm -rf .venv .venv-peers

# A stamp is current while it is newer than what it was made from. Each step adds to the one before.
# pip learned --group in 25.1; the pip of a fresh venv may be older.
.venv/core.done: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

.venv/test.done: .venv/core.done
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[data,figure,hub,onnx,remote,serve,track]' --group test
	@touch $@

.venv/all.done: .venv/docs.done
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,ray]'
	@touch $@

.venv/docs.done: .venv/test.done
	$(BIN)/python -m pip install --quiet -c constraints.txt --group docs
	@touch $@

.venv-peers/peers.done: pyproject.toml constraints-peers.txt
	test -x $(PEERS)/python || $(PYTHON) -m venv .venv-peers
	$(PEERS)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(PEERS)/python -m pip install --quiet -c constraints-peers.txt -e '.[data]' --group peers
	@touch $@
