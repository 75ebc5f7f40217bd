#!/usr/bin/env bash
# Sets a machine up for building and testing: a C linker, Python 3.11 or newer, Rust, and .venv with the packages of
# requirements.lock. With ROWMILL_PEERS=required, also the libraries of tools/peers.sh. Can be run repeatedly; installs
# only missing system packages, and only with apt.
set -euo pipefail
cd "$(dirname "$0")/.."

rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        return 1
    fi
}

apt_updated=false
# apt_install PACKAGE...: fails if apt, root or the first package is not available.
apt_install() {
    command -v apt-get >/dev/null || return 1
    if ! $apt_updated; then
        as_root apt-get update -qq >&2 || return 1
        apt_updated=true
    fi
    apt-cache show "$1" >/dev/null 2>&1 || return 1
    say "installing $* with apt"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# at_least HAVE WANTED: succeeds if version HAVE >= WANTED.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

python_ok() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null && python_ok "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

cargo_version() { cargo --version 2>/dev/null | awk '{print $2}'; }
cargo_ok() { local have; have=$(cargo_version) && [ -n "$have" ] && at_least "$have" "$rust_wanted"; }

{ command -v cc && command -v c++; } >/dev/null || apt_install gcc g++ libc6-dev ca-certificates ||
    fail "no C and C++ compiler: install gcc (a linker for Rust) and g++ (for a test), then run make again"

python=$(find_python) || {
    apt_install python3 python3-venv || true
    python=$(find_python) || fail "no Python 3.11 or newer with venv: install it, then run make again"
}

# Libraries of the engines that benchmarks compare with: installed if the caller requires them, as CI does.
if [ "${ROWMILL_PEERS:-}" = required ]; then
    tools/peers.sh >/dev/null
fi

# rustup reads rust-toolchain.toml. Without rustup, Debian's Rust for browsers (cargo-web) is new enough.
if ! cargo_ok; then
    if command -v rustup >/dev/null; then
        rustup toolchain install >&2 || true
    elif ! { apt_install rustup || apt_install cargo-web rustc-web rustfmt-web; }; then
        say "apt has neither rustup nor cargo-web"
    fi
    cargo_ok || fail "cargo must be at least $rust_wanted, got $(cargo_version || true): install it with rustup, then run make again"
fi

if ! [ -x .venv/bin/python ] || ! python_ok .venv/bin/python; then
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi

# pip installs the locked uv, then uv installs the other packages.
uv_wanted=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements.lock)
if [ "$(.venv/bin/uv --version 2>/dev/null | awk '{print $2}')" != "$uv_wanted" ]; then
    uv_lock=$(mktemp)
    trap 'rm -f "$uv_lock"' EXIT
    awk '/^uv==/ {on = 1} on {print} on && !/\\$/ {exit}' requirements.lock >"$uv_lock"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "$uv_lock"
fi
say "installing the packages of requirements.lock into .venv"
# Compiled here, each process that imports torch starts nearly 2 s sooner where Python may not write bytecode.
VIRTUAL_ENV="$PWD/.venv" .venv/bin/uv pip sync --quiet --require-hashes --compile-bytecode requirements.lock
