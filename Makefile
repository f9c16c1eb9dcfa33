# Aerie: every target sets up what it needs in .venv; a second call costs nothing.
# `make help` lists the targets and the variables.

MODEL       ?= demo
HOST        ?=
PORT        ?= 8000
PROMPT      ?= What is the capital of France?
PROMPT_FILE ?=
SYSTEM      ?=
N_TOKENS    ?=
SEQ_LEN     ?=
VARIANTS    ?=
DECODE      ?=
WEIGHTS     ?=
CONTEXT_END ?=
DEVICES     ?=
BACKEND     ?= auto
FALLBACK    ?=
NUMERICS    ?=
TEMPERATURE ?=
TOP_K       ?=
TOP_P       ?=
MIN_P       ?=
SEED        ?=
REPETITION_PENALTY ?=
DRAFT       ?=
RULE        ?=
STEPS       ?=
N_PROMPTS   ?=
CONVERSATION ?=
THRESHOLD   ?=
ENTROPY     ?=
BLOCK_SIZE  ?=
OUT         ?=
REFRESH     ?=
JSON        ?=
KEEP        ?=
WHEELS      ?=
SHARD       ?=
ISA         ?=
PYTHON      ?= python3

override GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
override KNOWN := MODEL HOST PORT PROMPT PROMPT_FILE SYSTEM N_TOKENS SEQ_LEN VARIANTS DECODE WEIGHTS CONTEXT_END DEVICES BACKEND FALLBACK NUMERICS TEMPERATURE TOP_K \
                  TOP_P MIN_P SEED REPETITION_PENALTY DRAFT RULE STEPS N_PROMPTS CONVERSATION THRESHOLD ENTROPY BLOCK_SIZE OUT REFRESH JSON KEEP WHEELS SHARD ISA PYTHON

# What a benchmark measures where nobody names a model is not what the others run.
override BENCH_MODEL := $(if $(filter file,$(origin MODEL)),,--model="$$MODEL")
override BENCH := $(if $(filter undefined file,$(origin WEIGHTS)),benchmarks,benchmarks.weight_kinds --weights="$$WEIGHTS")

# Every value reaches the programs through the environment, as it was typed: no shell and no make reads it again.
$(foreach name,$(KNOWN) $(GIVEN),$(eval override $(name) := $$(value $(name)))$(eval export $(name)))
override CHECKED := $(filter-out PYTHON,$(GIVEN))
$(if $(CHECKED),$(eval export CHECKED))

# Without bytecode, which some containers ask for, each of many processes would compile all Python anew.
unexport PYTHONDONTWRITEBYTECODE

# A program says itself what is wrong; `*** [Makefile:74: run] Error 2` below it says nothing more. With -q make is
# silent about a line that begins with + and ends with 1. It stays loud where the failure of a test is the news,
# and with -n, which runs lines that begin with +.
override LOUD := $(filter test test-slow test-all test-toolchain test-npu lit lint,$(MAKECMDGOALS))$(findstring n,$(firstword -$(MAKEFLAGS)))
override DO   := $(if $(LOUD),@,+@)
override OR_EXIT := || exit 1
MAKEFLAGS     += $(if $(LOUD),,-q)

override VENV   := .venv
override PY     := $(VENV)/bin/python
override RUN_LINT := $(MAKE) --no-print-directory lint  # not in the recipe itself: make runs a line with $(MAKE) with -n too
override SPREAD := -n auto --dist worksteal --cpu-seconds 20  # a process per CPU; neighbours stay together until one runs out of tests
override RUN    := variables $(VENV)/.stamp-run
override TEST   := variables $(VENV)/.stamp-test
override DOCS   := variables $(VENV)/.stamp-docs

override option   = $(if $($(2)),$(1)="$$$(2)")
override common   = $(call option,--model,MODEL) $(call option,--backend,BACKEND) $(call option,--seq-len,SEQ_LEN) \
                    $(call option,--numerics,NUMERICS) $(call option,--variants,VARIANTS) $(call option,--decode,DECODE)
override weights  = $(call option,--weights,WEIGHTS)
override answering = $(weights) $(call option,--fallback,FALLBACK) $(call option,--context-end,CONTEXT_END) $(call option,--devices,DEVICES) \
                    $(call option,--draft,DRAFT) $(call option,--rule,RULE) $(call option,--steps,STEPS) \
                    $(call option,--threshold,THRESHOLD) $(call option,--entropy,ENTROPY) \
                    $(call option,--block-size,BLOCK_SIZE)
override sampling = $(call option,--n-tokens,N_TOKENS) $(call option,--temperature,TEMPERATURE) \
                    $(call option,--top-k,TOP_K) $(call option,--top-p,TOP_P) $(call option,--min-p,MIN_P) \
                    $(call option,--seed,SEED) $(call option,--repetition-penalty,REPETITION_PENALTY)
override system   = $(call option,--system,SYSTEM)
override prompt   = $(if $(PROMPT_FILE),--prompt-file="$$PROMPT_FILE",--prompt="$$PROMPT") $(system)

.PHONY: help variables setup setup-npu doctor compile run models pull chat serve profile verify verify-full diagnosis bench mlir test test-slow test-all test-toolchain test-npu report lit lint docs docs-serve clean distclean
.DEFAULT_GOAL := help

help: ## list targets and variables
	$(DO)echo "targets:"
	$(DO)sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1@\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F@ '{ printf "%-14s %s\n", $$1, $$2 }'
	$(DO)echo "variables:"
	$(DO)echo "  MODEL        demo (default), smollm2, a GGUF file, a folder with a checkpoint, a Hugging Face id, ollama:NAME; make models lists those at hand"
	$(DO)echo "  HOST         the address that make serve listens on (default 127.0.0.1: only this machine)"
	$(DO)echo "  PORT         where make serve listens (default 8000)"
	$(DO)echo "  PROMPT       the question for run, profile and diagnosis"
	$(DO)echo "  PROMPT_FILE  a file with the question instead, of any length; -: standard input"
	$(DO)echo "  SYSTEM       a system message for run, chat, profile and diagnosis"
	$(DO)echo "  N_TOKENS     maximum number of tokens to generate"
	$(DO)echo "  VARIANTS     programs for n tokens against m positions, such as 8,128x512,2048; default: a set for the model's size"
	$(DO)echo "  DECODE       guide (default): GEMVs, attention on the CPU; rows: the programs of prompts, all on the device"
	$(DO)echo "  WEIGHTS      auto (default): bf16 for now; bf16; q8 or q4: blocks, what is in 16 or 32 bits is quantised; make bench: against bf16"
	$(DO)echo "  CONTEXT_END  stop (default), shift or sink: what happens at the end of the largest context"
	$(DO)echo "  DEVICES      0 (default): one device; 0,1: devices that share the model, with DECODE=rows"
	$(DO)echo "  SEQ_LEN      one prompt length to compile for, in tokens, instead of VARIANTS"
	$(DO)echo "  BACKEND      auto (default): the NPU if there is one, else virtual; virtual; npu"
	$(DO)echo "  FALLBACK     virtual: if the NPU fails, the answer continues from its KV cache on the virtual NPU"
	$(DO)echo "  NUMERICS     exact (default), or bfp16: the virtual NPU multiplies matrices as the NPU does"
	$(DO)echo "  TEMPERATURE  0 (default) is greedy; TOP_K, TOP_P, MIN_P, SEED shape the sampling above 0"
	$(DO)echo "  REPETITION_PENALTY  above 1: tokens of the prompt and the answer become less likely"
	$(DO)echo "  DRAFT        lookup, or a smaller model: proposes draft tokens, and one pass checks several"
	$(DO)echo "  RULE         of block diffusion models: which masks a pass fills in; STEPS, THRESHOLD, ENTROPY shape it"
	$(DO)echo "  BLOCK_SIZE   tokens of a diffusion block (default: as the model was trained)"
	$(DO)echo "  N_PROMPTS    make verify compares this many prompts (default 2); CONVERSATION: and a conversation of so many tokens"
	$(DO)echo "  OUT          where make mlir writes (default build/mlir)"
	$(DO)echo "  JSON         1: make run, models, doctor and test-toolchain print one record of JSON"
	$(DO)echo "  KEEP         folder where make test-toolchain stores every stage's texts and logs; default: none"
	$(DO)echo "  WHEELS       make setup-npu installs from this folder instead of upstream's pages"
	$(DO)echo "  SHARD        make test-slow runs this part of the slow tests, such as 2/4"
	$(DO)echo "  ISA          make bench limits both sides to it: avx2, avx512, avx512_bf16, amx, neon, neon_bf16, native, all"
	$(DO)echo "  REFRESH      1: make lit writes the golden texts anew"
	$(DO)echo "  PYTHON       the interpreter that makes .venv (default python3, 3.11 or newer)"

setup: $(RUN) ## make .venv with everything that running a model needs (no torch)

setup-npu: $(RUN) ## install upstream's wheels of the NPU compilers into .venv (docs/how-to/install-npu.md)
	$(DO)$(PY) -m aerie setup-npu $(call option,--wheels,WHEELS) $(OR_EXIT)

doctor: $(RUN) ## check every layer between Python and the NPU: what works now, and what to do next
	$(DO)$(PY) -m aerie doctor $(call option,--model,MODEL) $(if $(JSON),--json) $(OR_EXIT)

compile: $(RUN) ## compile all programs for MODEL
	$(DO)$(PY) -m aerie compile $(common) $(weights) $(OR_EXIT)

run: $(RUN) ## answer PROMPT
	$(DO)$(PY) -m aerie run $(common) $(answering) $(sampling) $(prompt) $(if $(JSON),--json) $(OR_EXIT)

models: $(RUN) ## list the models at hand, and whether they run here
	$(DO)$(PY) -m aerie models $(if $(JSON),--json) $(OR_EXIT)

pull: $(RUN) ## fetch MODEL, so that later runs need no network
	$(DO)$(PY) -m aerie pull -- "$$MODEL" $(OR_EXIT)

chat: $(RUN) ## talk with the model
	$(DO)$(PY) -m aerie chat $(common) $(answering) $(sampling) $(system) $(OR_EXIT)

serve: $(RUN) ## serve MODEL over HTTP with OpenAI's API and a chat page, on HOST and PORT
	$(DO)$(PY) -m aerie serve $(call option,--model,MODEL) $(call option,--host,HOST) $(call option,--port,PORT) $(call option,--backend,BACKEND) $(call option,--numerics,NUMERICS) $(call option,--variants,VARIANTS) $(weights) $(call option,--draft,DRAFT) $(OR_EXIT)

profile: $(RUN) ## answer PROMPT and show where the time went
	$(DO)$(PY) -m aerie profile $(common) $(answering) $(sampling) $(prompt) $(OR_EXIT)

verify: $(TEST) ## PASS or FAIL: answers, logits and every step against Hugging Face transformers in bf16
	$(DO)$(PY) -m aerie verify $(common) $(weights) $(call option,--prompts,N_PROMPTS) $(call option,--conversation,CONVERSATION) $(OR_EXIT)

verify-full: $(TEST) ## verify with all prompts, and with the runs that must be bit-identical
	$(DO)$(PY) -m aerie verify --full $(common) $(weights) $(OR_EXIT)

diagnosis: $(TEST) ## name the first step, from kernel to logits, that differs from transformers
	$(DO)$(PY) -m aerie diagnosis $(common) $(weights) $(prompt) $(OR_EXIT)

bench: $(TEST) ## measure MODEL (default: a synthetic Llama-3.2-1B) against transformers in bf16
	$(DO)$(PY) -m $(BENCH) $(BENCH_MODEL) $(call option,--isa,ISA) $(OR_EXIT)

mlir: $(RUN) ## write every kernel and program as MLIR text to OUT
	$(DO)$(PY) -m aerie mlir $(call option,--model,MODEL) $(call option,--seq-len,SEQ_LEN) $(if $(OUT),-- "$$OUT") $(OR_EXIT)

test: $(TEST) ## lint, and all tests except the slow ones and those that need an NPU
test-all: $(TEST) ## make test and make test-slow in one run: it collects the tests and sets up what they share once

test test-all:
	@mkdir -p build
	@$(RUN_LINT) >build/lint.log 2>&1 & lint=$$!; \
	  trap 'kill $$lint 2>/dev/null; exit 130' INT TERM; \
	  $(PY) -m pytest -m "$(if $(filter test,$@),not slow and )not board" $(SPREAD); tests=$$?; \
	  wait $$lint; linted=$$?; cat build/lint.log; \
	  [ $$linted -eq 0 ] || echo "error: make lint failed (above)" >&2; \
	  exit $$((tests ? tests : linted))

test-slow: $(TEST) ## the slow tests: those that take more than one CPU second
	@$(PY) -m pytest -m slow $(call option,--shard,SHARD) $(SPREAD)

lit: $(TEST) ## only the lit suite: texts, messages, and the tests on an NPU if there is one
	@$(VENV)/bin/lit -sv --show-unsupported $(if $(REFRESH),-D refresh="$$REFRESH") tests/lit

test-toolchain: $(RUN) ## compile all programs and kernels with upstream's compilers, stage by stage; needs no NPU
	@$(PY) -m aerie test-toolchain $(call option,--model,MODEL) $(call option,--seq-len,SEQ_LEN) $(weights) $(call option,--keep,KEEP) $(if $(JSON),--json)

test-npu: $(TEST) ## on a machine with an NPU: kernels and programs against the virtual NPU, the NPU tests, one report
	@$(PY) -m aerie test-npu

report: $(RUN) ## gather versions, doctor, logs and comparison in one file to attach to an issue
	$(DO)$(PY) -m aerie report $(OR_EXIT)

lint: $(TEST) ## ruff, clang-format, mypy --strict, the import contracts
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) tools/format_cpp.py --check
	@$(PY) tools/check_types.py
	@$(PY) tools/check_imports.py

docs: $(DOCS) ## build the documentation as a site, in build/site
	$(DO)NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs --quiet build --strict $(OR_EXIT)
	$(DO)echo "build/site/index.html"

docs-serve: $(DOCS) ## serve the documentation at PORT of this machine, and rebuild it after each change
	$(DO)NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve --dev-addr "127.0.0.1:$$PORT" $(OR_EXIT)

clean: ## remove compiled programs, reports and the caches of tools (keeps .venv)
	$(DO)rm -rf build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	$(DO)[ -z "$$AERIE_CACHE" ] || [ ! -x $(PY) ] || $(PY) -m aerie cache clear --all $(OR_EXIT)
	$(DO)find . -name __pycache__ -not -path './$(VENV)/*' -not -path './.git/*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	$(DO)rm -rf $(VENV) .rooms

# A variable that nobody reads is a slip of the pen: who writes prompt=hi means PROMPT.
variables:
	$(if $(CHECKED),$(DO)! command -v "$$PYTHON" >/dev/null || "$$PYTHON" tools/make_variables.py $(MAKECMDGOALS) $(OR_EXIT))

$(VENV)/.stamp-%: pyproject.toml constraints.txt
	$(DO)"$$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  printf 'error: Aerie needs Python 3.11 or newer; PYTHON=%s is not. Name another: make PYTHON=python3.12 ...\n' "$$PYTHON" >&2; \
	  echo "On Ubuntu 22.04: sudo apt install python3.11 python3.11-venv, then make PYTHON=python3.11 ..." >&2; exit 1; }
	$(DO)"$$PYTHON" tools/make_venv.py $* $(OR_EXIT)
	$(DO)touch $@ $(VENV)/.stamp-run
