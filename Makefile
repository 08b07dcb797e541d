# Everything a fresh checkout needs. `make demo` and `make test` install into .venv by themselves.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.delayd-installed
NATIVE := build/native/built
# A node that finds no bytecode compiles itself, at each of its hundreds of starts.
export PYTHONDONTWRITEBYTECODE :=
ARGS ?=
BESIDE := true
IMAGE ?= delayd:0.2.0
AUDIT_IMAGE ?= delayd-audit:0.2.0
SERVERS_IMAGE ?= delayd-servers:0.2.0
REVISION = $$(git rev-parse HEAD 2>/dev/null || echo unknown)
# What takes long is dealt into so many shares, of which a commit draws one (tests/shares.py); 1 is all.
SHARES ?= 5
# Tests that only compute; the inner loop does without those that take their time.
KINDS := not long and not slow
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
COMPUTING := tests --ignore=tests/conformance --ignore=tests/integration --ignore=tests/guides --ignore=tests/audit
# What takes the processor when nobody else wants it. Where Linux shares it among sessions, the
# niceness of a process counts only within its own.
LAST := setsid bash -c '{ echo 19 > /proc/self/autogroup; } 2>/dev/null || true; exec nice -n 19 "$$0" "$$@"'
# Tests with real parts watch the time and mostly wait: two files at a time, and those that share Spark
# beside them with what they leave (tests/conftest.py). The time limit ends a test that hangs; it
# measures none.
REAL := -n 3 --dist loadgroup --no-loadscope-reorder --timeout 1800
WITH_REAL_PARTS := tests/conformance tests/integration tests/guides tests/audit

# Where the native library is built the others run by it; of nodes in Python these ask the most.
NODES_IN_PYTHON := $(addprefix tests/integration/test_,failover.py ids.py requests.py request_cases.py storm.py messages.py without_transactions.py)

.PHONY: help setup demo test test-long test-full test-clients wheel-kills wheel-damage native-fuzz native-sanitize mutants chaos chaos-smoke chaos-docker wheels dist image image-audit image-tar image-audit-tar servers-tar k8s-test check check-fast sim sim-years coverage docs format clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) $(NATIVE)  ## the checkout's own .venv with delayd in it
ifeq ($(MAKECMDGOALS),setup)
	@echo "delayd is in $(VENV). Next: . $(BIN)/activate && delayd dev up   (or: make demo)"
endif

$(STAMP): pyproject.toml
	@python=""; \
	for candidate in "$${PYTHON:-}" python3.12 python3.11 python3; do \
	  if [ -n "$$candidate" ] && "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "delayd needs Python 3.11 or 3.12 with the venv module: install it (Debian: apt-get install python3 python3-venv) or name one with PYTHON=" >&2; exit 1; fi; \
	echo "setting up $(VENV) with $$($$python --version)"; \
	"$$python" -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[audit,chaos,dev-cluster,test]'
	@touch $@

# Built by the installation already; again where its source has changed. Without a compiler there is none.
$(NATIVE): native/build.py $(wildcard native/*.[ch]) | $(STAMP)
	$(BIN)/python native/build.py
	@mkdir -p $(@D) && touch $@

native-fuzz: setup  ## random and damaged frames through the native library and through Python: INPUTS=10000000 (SEED=7)
	DELAYD_NATIVE=1 PYTHONPATH=tests $(BIN)/python tests/native_fuzz.py --inputs $(or $(INPUTS),10000000) $(if $(SEED),--seed $(SEED)) $(ARGS)

# All tests that ask for the library.
NATIVE_TESTS = $$(grep -rlE 'library: native|either_path|the_library_runs' tests/unit --include='test_*.py')
# Python's own allocator would hide what is read beside a bytes object.
SANITIZED := env DELAYD_NATIVE=$(CURDIR)/build/native/libdelayd.sanitized.so PYTHONMALLOC=malloc PYTHONPATH=tests \
	ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(cc -print-file-name=libasan.so)"

native-sanitize: setup  ## the native library's tests and 100,000 inputs of its fuzzer under ASan and UBSan (gcc)
	$(BIN)/python native/build.py --sanitize
	$(SANITIZED) $(BIN)/python -m pytest -p no:cacheprovider $(NATIVE_TESTS)
	$(SANITIZED) $(BIN)/python tests/native_fuzz.py --inputs $(or $(INPUTS),100000) $(if $(SEED),--seed $(SEED))

demo: setup  ## the main job, on real parts: 20,000 time-outs, a third of them cancelled, through a killed master (ARGS="--orders 200000")
	$(BIN)/delayd dev demo $(ARGS)

# What the tests fetch comes while mypy keeps one of two processors busy.
FETCHING := PYTHONPATH=tests/integration:tests/audit:tests $(BIN)/python tests/guides/fetching.py
# What watches the time leaves much of the processors: long computations, which watch none, take that.
test: setup  ## every check, and each guarantee on real Kafka, real etcd, real kills; of what takes longer the fifth that the commit draws (SHARES=1: all)
	@said=$$(mktemp); $(LAST) $(MAKE) --no-print-directory test-long > $$said 2>&1 < /dev/null & beside=$$!; \
	trap 'kill -- -$$beside 2>/dev/null || true; rm -f $$said' EXIT; wrong=0; \
	$(MAKE) --no-print-directory check-fast KINDS="not long" BESIDE="$(FETCHING)" || exit 1; \
	$(BIN)/python -m pytest $(REAL) --shares $(SHARES) -m "not rehearsal" $(WITH_REAL_PARTS) $(ARGS) || wrong=1; \
	wait $$beside || wrong=1; cat $$said; exit $$wrong

test-long: setup  ## what of `make test` computes for long: tests (SHARES=1: all), and seeds of the simulation
	$(BIN)/python -m pytest --shares $(SHARES) -m "long and not rehearsal" --timeout 3600 $(COMPUTING)
	$(BIN)/python tests/simulation/run_seeds.py --first 30 --seeds 3 --of-commit 6
	DELAYD_NATIVE=0 $(BIN)/python tests/simulation/run_seeds.py --first 33 --seeds 1 --of-commit 2
	$(BIN)/python tests/simulation/run_seeds.py --zombies --first 50 --seeds 1 --of-commit 4
	$(BIN)/python tests/simulation/run_seeds.py --days 200 --first 4 --seeds 1 --of-commit 3
	$(BIN)/python tests/simulation/run_seeds.py --switch --first 1 --seeds 1 --of-commit 2
	$(BIN)/python tests/simulation/run_seeds.py --pauses --first 2 --seeds 1 --of-commit 2
	$(BIN)/python tests/simulation/run_seeds.py --quotas --first 2 --seeds 1 --of-commit 2
	$(BIN)/python tests/simulation/run_seeds.py --shards 3 --first 1 --seeds 1 --of-commit 1
	$(BIN)/python tests/simulation/run_seeds.py --shards 8 --first 1 --seeds 1 --of-commit 1
	$(BIN)/python tests/simulation/run_seeds.py --shards 2 --reshard --first 1 --seeds 1 --of-commit 2
	$(BIN)/python tests/simulation/run_seeds.py --hangs --first 1 --seeds 1 --of-commit 3

test-full: setup  ## what a release needs beside `make test`: the rehearsals, and loads at full size with their figures
	$(BIN)/python -m pytest $(REAL) -m rehearsal $(WITH_REAL_PARTS) tests/unit/node/monitoring/test_api_malformed.py
	DELAYD_NATIVE=0 $(BIN)/python -m pytest $(REAL) -m "not rehearsal and not long" tests/unit/node tests/unit/wheel tests/simulation $(NODES_IN_PYTHON)
	$(BIN)/python -m pytest -s --full tests/integration/test_chaos_runs.py tests/integration/test_random_requests.py tests/integration/test_storm.py tests/integration/test_audit_defects.py tests/integration/test_full_disk.py tests/integration/test_zombie_leader.py tests/k8s/test_manifests.py $(ARGS)

test-clients: setup  ## the libraries for Java, Go and Node: the conformance file, Java's on a real Kafka (Maven), and the guides' recipes compiled
	$(BIN)/python -m pytest -v --timeout 1800 tests/unit/client/test_conformance_file.py tests/guides/test_clients.py tests/guides/test_java_recipes.py $(ARGS)

# Where a test of the wheel finds what it shares with others.
WHEEL_TESTS := PYTHONPATH=tests:tests/unit $(BIN)/python -m

wheel-kills: setup  ## kill a process that feeds a wheel, compare what is left, go on: KILLS=500 times (SEED=17)
	$(WHEEL_TESTS) crashes.kills $(or $(KILLS),500) $(if $(SEED),--seed $(SEED)) $(ARGS)

wheel-damage: setup  ## flip bits and tear tails of a stopped wheel, see each of them told: FLIPS=1000 TAILS=500 (SEED=17)
	$(WHEEL_TESTS) crashes.damage --flips $(or $(FLIPS),1000) --tails $(or $(TAILS),500) $(if $(SEED),--seed $(SEED)) $(ARGS)

mutants: setup  ## break each safety rule once, see it caught by simulation or tests, write docs/design/mutants.md (ARGS: their names, --list)
	PYTHONPATH=tests $(BIN)/python -m mutants $(ARGS)

chaos-smoke: setup  ## the faults that matter most on real clusters, small, judged (SEED=17 strikes the same again; ARGS="--shards 4")
	$(BIN)/python -m chaos smoke $(ARGS)

chaos: setup  ## every fault on real clusters at full size, judged; the report is in chaos-report/ (SEED=17)
	$(BIN)/python -m chaos matrix $(ARGS)

chaos-docker: setup  ## faults on containers: three brokers, three members of etcd, nodes of the image (BASE=my-debian:1 SEED=17)
	$(BIN)/python -m chaos matrix --backend docker $(if $(BASE),--base $(BASE)) $(ARGS)

dist: setup  ## the wheel, the source archive and a bill of materials in build/dist, looked at, and tried in a bare environment (the demo)
	rm -rf build/dist
	$(BIN)/python tests/dist.py build/dist

wheels: setup  ## what an image installs, in build/wheels, for builders that can ask no package index (EXTRA=[audit] for both images)
	rm -rf build/wheels
	$(BIN)/pip wheel --quiet --disable-pip-version-check --wheel-dir build/wheels '.$(EXTRA)' 'hatchling>=1.25'
	rm build/wheels/delayd-*.whl

image:  ## the image of a node, `delayd` (BASE=my-debian:1 builds it on that; PYTHON=3.12)
	docker build --target node $(if $(BASE),--build-arg BASE=$(BASE)) $(if $(PYTHON),--build-arg PYTHON=$(PYTHON)) \
	  --build-arg REVISION=$(REVISION) -t $(IMAGE) $(ARGS) .

image-audit:  ## the image of `delayd audit`, with Spark and Java (BASE and PYTHON as above)
	docker build $(if $(BASE),--build-arg BASE=$(BASE)) $(if $(PYTHON),--build-arg PYTHON=$(PYTHON)) \
	  --build-arg REVISION=$(REVISION) --target audit -t $(AUDIT_IMAGE) $(ARGS) .

image-tar: setup  ## the image of a node without a daemon, for `ctr images import`: BASE_TAR=rootfs.tar OUT_TAR=delayd.tar
	$(BIN)/python -m image.tar "$(BASE_TAR)" "$(or $(OUT_TAR),delayd.tar)" --tag $(IMAGE) --revision $(REVISION) $(ARGS)

image-audit-tar: setup  ## the image of `delayd audit` without a daemon: BASE_TAR=rootfs.tar JAVA=/usr/lib/jvm/... OUT_TAR=delayd-audit.tar
	$(BIN)/python -m image.tar "$(BASE_TAR)" "$(or $(OUT_TAR),delayd-audit.tar)" --tag $(AUDIT_IMAGE) \
	  --revision $(REVISION) --target audit --java "$(JAVA)" $(ARGS)

servers-tar: setup  ## Kafka and etcd as one image, for clusters that reach no registry: BASE_TAR=rootfs.tar JAVA=/usr/lib/jvm/...
	$(BIN)/python -m image.tar "$(BASE_TAR)" "$(or $(OUT_TAR),delayd-servers.tar)" --tag $(SERVERS_IMAGE) \
	  --target servers --java "$(JAVA)" $(ARGS)

k8s-test: setup  ## break a real cluster of overlays/dev and judge it: whatever kubectl points at (KUBECTL="kubectl --context kind-x")
	KUBECTL="$(or $(KUBECTL),kubectl)" $(BIN)/python -m pytest -v --timeout 1800 k8s/tests $(ARGS)

check: test  ## the same as test

# mypy uses one processor for a good part of the time that the tests take.
check-fast: setup  ## the inner loop: format, lint, types, unit tests, simulation; without Spark
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	@said=$$(mktemp); $(BIN)/mypy > $$said & types=$$!; $(BESIDE) & fetching=$$!; \
	trap 'kill $$types $$fetching 2>/dev/null || true; rm -f $$said' EXIT; wrong=0; \
	$(BIN)/python -m pytest $(PARALLEL) -m "$(KINDS)" $(COMPUTING) $(ARGS) || wrong=1; \
	wait $$types || wrong=1; wait $$fetching || true; cat $$said; exit $$wrong

coverage: setup  ## branch coverage of replication/ by unit tests, transcripts and simulation: fails below 100 %
	$(BIN)/coverage run -m pytest -q --full tests/unit tests/scenarios tests/simulation $(ARGS)
	$(BIN)/coverage report

sim: setup  ## whole clusters from seeds, in one thread each: SEEDS=1000 many, SEED=17 that one with all that happened
	$(BIN)/python tests/simulation/run_seeds.py $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),50)) $(ARGS)

sim-years: setup  ## the same for 200 days of virtual time each: retention, lost disks, nodes away for weeks (SEEDS=500, SEED=17)
	$(BIN)/python tests/simulation/run_seeds.py --days 200 $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),500)) $(ARGS)

docs: setup  ## the site of all pages, for a browser without a network, in build/site/html: a wrong link fails
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	$(BIN)/python docs/build_site.py

format: setup  ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what setup and the tests made
	rm -rf $(VENV) build/native delayd/runtime/libdelayd.native.so .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
