# Everything sets itself up: `make demo` and `make test` need nothing but Python 3.11 and make.
#
#   PYTHON=python3.12   interpreter of a new environment
#   TORCH=torch==2.12.0 another torch; an environment's torch >= 2.11 is kept as it is
#   ARGS='-k prompts'   further arguments for pytest

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
TORCH ?=
ARGS ?=
ENV := $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV),$(CURDIR)/.venv)
PY := $(ENV)/bin/python
DFLASH := $(PY) -m dflash
READY := .ready-$(shell echo '$(ENV)' | cksum | cut -d' ' -f1)
# pip draws its bars at a terminal and is silent elsewhere
PIP := $(PY) -m pip install --disable-pip-version-check $(shell [ -t 2 ] || echo -q)
# the other tested transformers, beside the environment's own
OLDEST := 5.17.0
PYTEST := $(PY) -m pytest
# a test process a core; each takes whole files, so that what a file's tests share is made once
SHARED := $(PYTEST) -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

HAS_TORCH := import torch; v = torch.__version__.split('.'); raise SystemExit((int(v[0]), int(v[1])) < (2, 11))
NEW_ENOUGH := import sys; sys.version_info >= (3, 11) or sys.exit('expected Python 3.11 or newer, found ' + sys.version)

.PHONY: help venv demo test quick slow evidence gpu lint bench parity

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

venv: $(READY)  ## make the environment, or complete the active one

$(READY): pyproject.toml
	@[ -x $(PY) ] || { $(PYTHON) -c "$(NEW_ENOUGH)"; \
	  echo "Making an environment in $(ENV)"; \
	  if $(PYTHON) -c "$(HAS_TORCH)" 2>/dev/null; then reuse=--system-site-packages; else reuse=; fi; \
	  $(PYTHON) -m venv $$reuse $(ENV); }
	@$(PY) -c "$(NEW_ENOUGH)"
	@$(PIP) 'pip>=24.1'
	@torch='$(TORCH)'; \
	if [ -z "$$torch" ] && ! $(PY) -c "$(HAS_TORCH)" 2>/dev/null; then \
	  if nvidia-smi -L >/dev/null 2>&1; then torch=torch==2.11.0; else torch=torch==2.13.0; fi; \
	fi; \
	if [ -n "$$torch" ]; then echo "Installing $$torch"; $(PIP) "$$torch"; fi
	@if $(PY) -c 'import triton' 2>/dev/null; then extra=test; else extra=dev; fi; \
	echo "Installing dflash-toolkit with its $$extra extra"; $(PIP) -e ".[$$extra]"
	@echo "Adding transformers $(OLDEST), which the engine's smoke test runs on"; \
	$(PIP) --target "$$($(PY) -c 'import sys; print(sys.prefix)')/share/transformers-$(OLDEST)" \
	  --upgrade transformers==$(OLDEST)
	@touch $@

demo: $(READY)  ## record a real model on a real prompt, replay it, look at it
	@mkdir -p demo
	$(DFLASH) models pull -q
	$(DFLASH) record "Explain rainbows to a child." -o demo/default.parquet --overwrite
	$(DFLASH) info demo/default.parquet
	$(DFLASH) cat demo/default.parquet -n 12
	$(DFLASH) replay demo/default.parquet --check
	$(DFLASH) replay demo/default.parquet --policy match --policy match:length=2 --policy threshold:t=0.7
	$(DFLASH) record "Explain rainbows to a child." --drafter none -o demo/plain.parquet --overwrite -q
	$(DFLASH) diff demo/plain.parquet demo/default.parquet || [ $$? -eq 1 ]
	$(DFLASH) record "Explain rainbows to a child." --drafter self --temperature 0.8 --max-new-tokens 24 \
	  -o demo/self.parquet --overwrite
	$(DFLASH) replay demo/self.parquet --check
	$(DFLASH) diff demo/default.parquet demo/self.parquet --limit 3 || [ $$? = 1 ]

test: $(READY)  ## run the tests that need no GPU, the slow ones too
	$(SHARED)

quick: $(READY)  ## run the tests that take seconds
	$(SHARED) -m 'not slow and not gpu and not evidence'

slow: $(READY)  ## run only the slow tests
	$(SHARED) -m 'slow and not gpu and not evidence'

evidence: $(READY)  ## repeat the large runs behind the README's figures
	$(PYTEST) $(ARGS) -m evidence

gpu: $(READY)  ## run the tests that need a CUDA device
	$(PYTEST) $(ARGS) -m gpu

# the peers' packages lie in folders of their own: z-lab's takes our import name, both pin other versions
parity: $(READY)  ## compute the drafts of z-lab's and speculators' code anew, as vectors for the tests
	$(PIP) --upgrade --target build/peers/zlab --no-deps dflash==0.1.0
	$(PIP) --upgrade --target build/peers/speculators openai pydantic-settings loguru
	$(PIP) --upgrade --target build/peers/speculators --no-deps speculators==0.9.0 hs-connectors==0.9.0 \
	  datasets dill multiprocess xxhash aiohttp pandas python-dateutil pytz six
	@for peer in zlab speculators; do \
	  (cd build/peers; HF_HUB_OFFLINE=1 PYTHONPATH=$(CURDIR)/build/peers/$$peer \
	    $(PY) $(CURDIR)/tests/parity/$${peer}_vectors.py $(CURDIR)/tests/vectors/drafters); \
	done
	$(PYTEST) $(ARGS) tests/drafters/test_peer_vectors.py

lint: $(READY)  ## check style and types
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

bench: $(READY)  ## measure what recording costs on this machine
	$(DFLASH) bench record
