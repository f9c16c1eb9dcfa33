# Aerie: every target sets up what it needs in .venv; a second call costs nothing.
# `make help` lists the targets and the variables.

MODEL       ?= demo
PROMPT      ?= What is the capital of France?
PROMPT_FILE ?=
SYSTEM      ?=
N_TOKENS    ?=
SEQ_LEN     ?=
BACKEND     ?= auto
FALLBACK    ?=
NUMERICS    ?=
TEMPERATURE ?=
TOP_K       ?=
TOP_P       ?=
SEED        ?=
OUT         ?=
REFRESH     ?=
JSON        ?=
WHEELS      ?=
PYTHON      ?= python3

# What a benchmark measures where nobody names a model is not what the others run.
BENCH_MODEL := $(if $(filter file,$(origin MODEL)),,--model "$(MODEL)")

# A prompt reaches the program through the environment, as it was typed: no shell and no make reads it again.
override PROMPT := $(value PROMPT)
override PROMPT_FILE := $(value PROMPT_FILE)
override SYSTEM := $(value SYSTEM)
export PROMPT PROMPT_FILE SYSTEM

# Without bytecode, which some containers ask for, each of many processes would compile all Python anew.
unexport PYTHONDONTWRITEBYTECODE

VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.stamp
SPREAD := -n auto --dist worksteal  # a process per CPU; neighbours stay together until one runs out of tests
RUN    := $(STAMP)-run
TEST   := $(STAMP)-test

common   = --model "$(MODEL)" --backend "$(BACKEND)" $(if $(SEQ_LEN),--seq-len "$(SEQ_LEN)") \
           $(if $(NUMERICS),--numerics "$(NUMERICS)")
fallback = $(if $(FALLBACK),--fallback "$(FALLBACK)")
sampling = $(if $(N_TOKENS),--n-tokens "$(N_TOKENS)") $(if $(TEMPERATURE),--temperature "$(TEMPERATURE)") \
           $(if $(TOP_K),--top-k "$(TOP_K)") $(if $(TOP_P),--top-p "$(TOP_P)") $(if $(SEED),--seed "$(SEED)")

system   = $(if $(value SYSTEM),--system="$$SYSTEM")
prompt   = $(if $(value PROMPT_FILE),--prompt-file="$$PROMPT_FILE",--prompt="$$PROMPT") $(system)

.PHONY: help setup setup-npu doctor compile run chat profile verify verify-full diagnosis bench mlir test test-long test-npu report lit lint clean distclean
.DEFAULT_GOAL := help

help: ## list targets and variables
	@echo "targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1@\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F@ '{ printf "%-12s %s\n", $$1, $$2 }'
	@echo "variables:"
	@echo "  MODEL        demo (default), a folder with a Hugging Face checkpoint, a Hugging Face id, base or instruct"
	@echo "  PROMPT       the question for run, profile and diagnosis"
	@echo "  PROMPT_FILE  a file with the question instead, of any length; -: standard input"
	@echo "  SYSTEM       a system message for run, chat, profile and diagnosis"
	@echo "  N_TOKENS     how many tokens to generate at most"
	@echo "  SEQ_LEN      the compiled prompt length in tokens; left out: as long as is needed"
	@echo "  BACKEND      auto (default): the NPU where there is one, else virtual; virtual; npu"
	@echo "  FALLBACK     virtual: an answer that the NPU fails in goes on from its KV cache on the virtual NPU"
	@echo "  NUMERICS     exact (default), or bfp16: the virtual NPU makes matrix products as the NPU does"
	@echo "  TEMPERATURE  0 (default) is greedy; TOP_K, TOP_P, SEED shape the sampling above 0"
	@echo "  OUT          where make mlir writes (default build/mlir)"
	@echo "  JSON         1: make run and make doctor print one record of JSON"
	@echo "  WHEELS       make setup-npu installs from this folder instead of upstream's pages"
	@echo "  REFRESH      1: make lit takes new golden texts over"
	@echo "  PYTHON       the interpreter that makes .venv (default python3, 3.10 or newer)"

setup: $(RUN) ## make .venv with all that running needs (no torch)

setup-npu: $(RUN) ## install upstream's wheels of the NPU compilers into .venv (docs/install.md)
	@$(PY) -m aerie setup-npu $(if $(WHEELS),--wheels "$(WHEELS)")

doctor: $(RUN) ## check every layer between Python and the NPU: what works now, and what to do next
	@$(PY) -m aerie doctor --model "$(MODEL)" $(if $(JSON),--json)

compile: $(RUN) ## compile the six programs for MODEL
	@$(PY) -m aerie compile $(common)

run: $(RUN) ## answer PROMPT
	@$(PY) -m aerie run $(common) $(fallback) $(sampling) $(prompt) $(if $(JSON),--json)

chat: $(RUN) ## talk with the model
	@$(PY) -m aerie chat $(common) $(fallback) $(sampling) $(system)

profile: $(RUN) ## answer PROMPT and show where the time went
	@$(PY) -m aerie profile $(common) $(fallback) $(sampling) $(prompt)

verify: $(TEST) ## PASS or FAIL: two prompts against Hugging Face transformers in bf16
	@$(PY) -m aerie verify $(common)

verify-full: $(TEST) ## the same with every kind of prompt, and what must be the same to the bit
	@$(PY) -m aerie verify --full $(common)

diagnosis: $(TEST) ## name the first step, from kernel to logits, that is not what transformers computes
	@$(PY) -m aerie diagnosis $(common) $(prompt)

bench: $(TEST) ## measure MODEL (default: a synthetic Llama-3.2-1B) against transformers in bf16
	@$(PY) -m benchmarks $(BENCH_MODEL)

mlir: $(RUN) ## write every kernel and program as MLIR text to OUT
	@$(PY) -m aerie mlir --model "$(MODEL)" $(if $(SEQ_LEN),--seq-len "$(SEQ_LEN)") $(if $(OUT),"$(OUT)")

test: $(TEST) ## lint, types, imports between rooms, and every test but the long ones and the board's
	@mkdir -p build
	@$(MAKE) --no-print-directory lint >build/lint.log 2>&1 & lint=$$!; \
	  trap 'kill $$lint 2>/dev/null; exit 130' INT TERM; \
	  $(PY) -m pytest -m "not long and not board" $(SPREAD); tests=$$?; \
	  wait $$lint; linted=$$?; cat build/lint.log; \
	  [ $$linted -eq 0 ] || echo "error: make lint failed (above)" >&2; \
	  exit $$((tests ? tests : linted))

test-long: $(TEST) ## the long tests
	@$(PY) -m pytest -m long $(SPREAD)

lit: $(TEST) ## the lit suite alone: texts, messages, and what needs a board where there is one
	@$(VENV)/bin/lit -sv --show-unsupported $(if $(REFRESH),-D refresh="$(REFRESH)") tests/lit

test-npu: $(TEST) ## on a board: kernels and programs against the virtual NPU, the board tests, one report
	@$(PY) -m aerie test-npu

report: $(RUN) ## gather versions, doctor, logs and comparison in one file to attach to an issue
	@$(PY) -m aerie report

lint: $(TEST) ## ruff, mypy --strict, the order of the rooms, no circles inside them
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports --no-logo

clean: ## remove compiled programs and reports (keeps .venv)
	rm -rf build
	@[ -z "$$AERIE_CACHE" ] || [ ! -x $(PY) ] || $(PY) -m aerie cache clear --all

distclean: clean ## remove .venv too
	rm -rf $(VENV)

$(STAMP)-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "error: Aerie needs Python 3.10 or newer; '$(PYTHON)' is not. Name another: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
	@touch $@

$(RUN): pyproject.toml | $(STAMP)-venv
	@echo "setting up .venv for running ..." >&2
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable . >&2
	@touch $@

$(TEST): pyproject.toml | $(STAMP)-venv
	@echo "setting up .venv for testing ..." >&2
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[test]' >&2
	@touch $@ $(RUN)
