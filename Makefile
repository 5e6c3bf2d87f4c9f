# Every target makes .venv on first use, with the newest supported Python it finds (or PYTHON=/path/to/python3.12).

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
REQUIRE_PYTHON = if [ -z "$(PYTHON)" ]; then echo "No supported Python found: install Python 3.11, 3.12 or 3.13 (with venv), or run make PYTHON=/path/to/python3.12" >&2; exit 1; fi
RUN = .venv/bin/python
DEMO = runs/demo
STAMP = .venv/.made-by-make
BENCH = .venv-bench/bin/python
BENCHED = .venv-bench/.made-by-make
TESTED = .venv/.tested-by-make

GPU_PLAN = $(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[gpu-plan]'
EXTRAS = browser,tensorboard,dev,evals,gcs,hf,s3,sentencepiece,seqio,tfds,webdataset

.PHONY: help venv demo test test-slow test-gpu-plan test-tpu test-cluster browser test-browser lint docs bench faults fuzz
help:
	@echo "make demo   set up, train the demo on the standard library's source (three to six minutes), sample from it"
	@echo "make test   set up, run the tests (15 to 30 minutes on two cores)"
	@echo "make test-slow  set up, run the other tests: killed processes, waits, object stores, long trainings, models of transformers on torch, all documented commands"
	@echo "make test-gpu-plan  set up with the GPU compiler (a download of 180 MB, no GPU), plan for H100s; part of test-slow"
	@echo "make test-tpu  both, and what needs the TPU compiler (a large download, no TPU)"
	@echo "make test-cluster  set up, train under a Slurm and an Open MPI on this machine (as root, with both installed)"
	@echo "make test-browser  set up, test the pages in Chromium (as root it installs the distribution's), about three minutes"
	@echo "make lint   set up, check format, style, types and the direction of imports"
	@echo "make docs   set up, write the documentation as a site into build/site"
	@echo "make bench  set up with torch, transformers and Levanter, measure side by side (two hours and a half), write docs/reference/benchmarks.md"
	@echo "make faults set up, train six kinds of runs with every kind of fault and count those that recover (two hours)"
	@echo "make fuzz   set up, read 10,000 mutated inputs of each kind (one to two hours)"

venv: $(TESTED)

$(STAMP): pyproject.toml constraints.txt
	@$(REQUIRE_PYTHON)
	@echo "Setting up .venv with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv --clear .venv
	@$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(TESTED): $(STAMP)
	@echo "Adding what tests, lint and benchmarks need ..."
	@$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP)
	$(RUN) -m runners.main --exp=tiny.StdlibTiny --workdir=$(DEMO)
	$(RUN) -m runners.main --workdir=$(DEMO) --mode=sample --prompt="def " --max_new_tokens=256
	@echo "Report page: $(DEMO)/report.html"

# Three workers for two cores: many tests wait for a process or the disk.
test: $(TESTED)
	$(RUN) -m pytest -n 3 -m "not slow and not browser"

# Without the check of shapes at each call, which the quick tests make.
test-slow: $(TESTED)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torch]' 'lm-eval[hf]'
	@$(GPU_PLAN) || echo "NOT RUN: plans for GPUs. The GPU compiler cannot be installed here." >&2
	$(RUN) -m pytest -n 3 -m "slow and not browser" -p no:tests.support.plugins.shapes

test-gpu-plan: $(TESTED)
	$(GPU_PLAN)
	$(RUN) -m pytest -n 2 -m gpu_plan

test-tpu: $(TESTED)
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[tpu]'
	$(RUN) -m pytest -n 2 -m "not browser"

# Exits with 1 and the reason where Chromium is missing and cannot be installed.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "Chromium is missing, and only root with apt-get can install it. Install your distribution's chromium, then run make test-browser again." >&2; exit 1; fi; \
		echo "Installing the distribution's chromium ..."; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium >/dev/null; } || \
			{ echo "Chromium cannot be installed: apt-get failed. Check the network and the package sources, then run make test-browser again." >&2; exit 1; }; }

test-browser: $(TESTED) browser
	@$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[browser]'
	$(RUN) -m pytest tests/browser

test-cluster: $(TESTED)
	$(RUN) -m tests.cluster.slurm $(RUN) -m pytest -s -rs tests/cluster

lint: $(TESTED)
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m pyright
	.venv/bin/lint-imports

docs: $(TESTED)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true JAX_PLATFORMS=cpu PYTHONPATH=. .venv/bin/mkdocs build --strict --quiet
	@echo "Pages: build/site/index.html"

# The other implementations are optional: those that cannot be installed are reported, and missing from the tables.
$(BENCHED): pyproject.toml benchmarks/constraints.txt
	@$(REQUIRE_PYTHON)
	@echo "Setting up .venv-bench ..."
	@$(PYTHON) -m venv --clear .venv-bench
	@install() { $(BENCH) -m pip install --quiet --disable-pip-version-check --constraint benchmarks/constraints.txt --editable "$$1"; }; \
	if install '.[bench]'; then touch $@; else \
	echo "Not all implementations can be installed here. Trying without Levanter (the next make bench tries again)."; \
	install '.[bench-torch]' || { echo "Continuing without torch and transformers."; install .; }; fi

bench: export GLIBC_TUNABLES = glibc.malloc.hugetlb=1 # as in runs: runners/machine/huge_pages.py
bench: $(BENCHED) $(TESTED)
	$(BENCH) -m benchmarks.training --size=6x384 --publish
	$(BENCH) -m benchmarks.training --size=6x384 --avx2 --publish
	$(BENCH) -m benchmarks.training --size=124M --together=5 --updates=1 --publish
	$(BENCH) -m benchmarks.training --size='Llama 124M' --together=5 --updates=1 --publish
	$(BENCH) -m benchmarks.decoding --publish
	$(RUN) -m benchmarks.speculation --publish
	$(RUN) -m benchmarks.one_layer.attention --publish
	$(RUN) -m benchmarks.one_layer.experts --publish
	$(RUN) -m benchmarks.startup --publish
	$(RUN) -m benchmarks.memory --publish
	$(RUN) -m benchmarks.saving --publish
	$(RUN) -m benchmarks.loop --publish
	$(RUN) -m benchmarks.data --publish
	$(RUN) -m benchmarks.vq speed --publish
	$(RUN) -m benchmarks.vq flat --remat=full --publish
	$(RUN) -m benchmarks.vq sampling --publish

faults: $(TESTED)
	$(RUN) -m benchmarks.faults

fuzz: $(TESTED)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torch]'
	$(RUN) -m testing.fuzz
