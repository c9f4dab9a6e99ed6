# make demo | make check | make quick. See CONTRIBUTING.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(shell cat requirements/dev.lock pyproject.toml 2>/dev/null | cksum | cut -d' ' -f1)
TOOLS := $(VENV)/.tools-$(shell cat requirements/dev.lock requirements/deploy.lock pyproject.toml 2>/dev/null | cksum | cut -d' ' -f1)

.DEFAULT_GOAL := help
.PHONY: help setup demo quick check lint types imports test engines engines-setup clients clients-setup deploy scale fuzz soak wheel compiler compiled test-compiled test-wired test-rest wheel-wired wheel-rest bench bench-smoke format lock clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "specswitch needs Python 3.11 to 3.13; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip  # before 24, extras and hashes do not mix
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.installed-*; touch $@

$(TOOLS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/deploy.lock
	@rm -f $(VENV)/.tools-*; touch $@

setup: $(STAMP)  ## the virtual environment, from the lock

demo: $(STAMP)  ## a simulated GPU pair and specswitch in front of it; no GPU needed
	$(BIN)/specswitch demo

format: $(STAMP)  ## rewrite files as ruff would have them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/oxlint -D correctness -D suspicious -D perf proxy/control/page

types: $(TOOLS)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

# What needs no environment of its own.
PLAIN := not engines and not deploy and not clients and not scale
QUICK := tests/unit tests/properties tests/docs tests/faults/test_endings.py tests/conformance/test_http_downstream.py

quick: lint types imports  ## what needs no engine and no patience: pure tests, and some over sockets
	$(BIN)/python -m pytest -q -m "not slow and $(PLAIN)" $(QUICK)

# Two halves at a time, each with a core of its own: what speaks over sockets, and all the rest.
WIRED := tests/conformance tests/faults tests/soak
REST := $(addprefix --ignore=,$(WIRED) tests/simulation) tests
COVERED := $(BIN)/python -m pytest -q -m "$(PLAIN)" --cov --cov-fail-under=0 --cov-report=

test: $(TOOLS)  ## all tests but those on real engines, with the coverage gate
	rm -f .coverage .coverage.*
	$(MAKE) --no-print-directory -j2 test-wired test-rest
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report

test-wired: $(TOOLS)
	COVERAGE_FILE=.coverage.wired $(COVERED) $(WIRED)

test-rest: $(TOOLS)
	COVERAGE_FILE=.coverage.rest $(COVERED) $(REST)
	$(BIN)/python -m pytest -q tests/simulation  # arithmetic alone, which tracing makes twice as long

engines-setup: $(STAMP)  ## the environment and the tiny models of the real SGLang pair
	$(BIN)/python -m tests.engines.setup

engines: engines-setup  ## the tests on two real SGLang servers
	$(BIN)/python -m pytest -q -m engines tests/engines

clients-setup: $(STAMP)  ## the environment of the clients that people use
	$(BIN)/python -m tests.clients.setup

# The first test waits for the real pair: longer than the usual time after which stacks are shown.
clients: clients-setup engines-setup  ## those clients in front of the simulated and the real pair
	$(BIN)/python -m pytest -q -m clients -o faulthandler_timeout=290 tests/clients

deploy: $(TOOLS)  ## the tests of what is deployed: image, stack, rules, dashboard, status page
	$(BIN)/python -m pytest -q -m deploy -o faulthandler_timeout=290 tests/deploy

scale: $(TOOLS)  ## the tests of several pairs behind sglang-router, Envoy and HAProxy
	$(BIN)/python -m pytest -q -m scale tests/scale

soak: $(STAMP)  ## 20,000 requests with every fault against real processes, about a minute
	$(BIN)/python -m tests.soak

FUZZ_SECONDS ?= 300
fuzz: $(STAMP)  ## fuzz both protocols by coverage; fetches atheris into .fuzz
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target .fuzz --no-deps --require-hashes -r tests/fuzz/requirements.txt
	for side in reader client engine both; do PYTHONPATH=.fuzz:. $(BIN)/python -m tests.fuzz.guided $$side -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=.fuzz/ || exit 1; done

wheel: $(STAMP)  ## build the wheel and try it in an empty environment
	$(BIN)/python tests/smoke_wheel.py

compiler: $(STAMP)
	@$(BIN)/python hatch_build.py

compiled: compiler  ## the wheel with its hot modules compiled, in .compiled; needs a C compiler
	rm -rf .compiled
	SPECSWITCH_COMPILE=1 $(BIN)/python -m build --wheel --no-isolation --outdir .compiled/dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .compiled/site .compiled/dist/*.whl

# Safe path: in this folder lies the source, which would come first.
ON_WHEEL := PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/.compiled/site:$(CURDIR) $(BIN)/python -m pytest -q --compiled -o pythonpath=

test-compiled: compiled  ## the faster tests once more, on the compiled wheel; and a soak, a fuzz, real processes
	$(MAKE) --no-print-directory -j2 wheel-wired wheel-rest

wheel-wired:
	$(ON_WHEEL) -m "not slow and $(PLAIN)" tests/conformance tests/faults
	$(ON_WHEEL) tests/soak tests/conformance/test_serve_process.py

wheel-rest:
	$(ON_WHEEL) -m "not slow and $(PLAIN)" tests/unit tests/properties
	$(ON_WHEEL) tests/fuzz

bench: compiled  ## specswitch beside its peers: every work, two and a half hours
	$(BIN)/python -m bench.speed

bench-smoke: compiled  ## the short form, with bounds: two minutes
	$(BIN)/python -m bench.speed --smoke

# Real engines compute, and what is deployed mostly waits: they take hardly longer side by side.
check: compiler lint types imports test test-compiled clients scale  ## everything; what CI runs
	$(MAKE) --no-print-directory -j2 engines deploy
	$(MAKE) --no-print-directory wheel bench-smoke

LOCK := $(BIN)/uv pip compile -q --universal --generate-hashes --no-header
lock: $(STAMP)  ## choose dependencies anew (with the cooldown of pyproject.toml)
	$(LOCK) --group dev pyproject.toml requirements/build.in -o requirements/dev.lock
	$(LOCK) --constraint requirements/dev.lock --group deploy -o requirements/deploy.lock
	$(LOCK) --constraint requirements/dev.lock pyproject.toml -o requirements/runtime.lock
	$(LOCK) requirements/clients.in -o requirements/clients.lock
	$(LOCK) --constraint requirements/dev.lock requirements/image.in -o requirements/image.lock

clean:  ## remove what make made
	rm -rf $(VENV) .compiled .engines .clients .fuzz bench/speed/build dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.*
