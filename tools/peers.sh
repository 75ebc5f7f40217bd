#!/usr/bin/env bash
# Prints the features of rowmill-bench whose libraries this machine has, for cargo. Prints to stderr which engines are
# skipped and why. A library is available if a test program links with it.
#
# With ROWMILL_PEERS=required, installs the Debian packages of missing libraries with apt, and fails if one is still
# missing.
set -euo pipefail

# engine | libraries that its adapter links | their Debian packages
peers=(
    "rocksdb|rocksdb|librocksdb-dev"
    "lmdb|lmdb|liblmdb-dev"
    "wiredtiger|wiredtiger|libwiredtiger-dev"
    "faster|aio tbb uuid stdc++fs|libaio-dev libtbb-dev uuid-dev g++"
)

say() { printf 'peers: %s\n' "$*" >&2; }

# links LIBRARY...: succeeds if a program links with the libraries.
links() { echo 'int main(void) { return 0; }' | c++ -x c++ - -o /dev/null "${@/#/-l}" 2>/dev/null; }

install() {
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    say "installing $* with apt"
    { "${root[@]}" apt-get update -qq && "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@"; } >&2
}

features=()
for peer in "${peers[@]}"; do
    IFS='|' read -r name libraries packages <<<"$peer"
    read -ra libraries <<<"$libraries"
    read -ra packages <<<"$packages"
    if ! links "${libraries[@]}" && [ "${ROWMILL_PEERS:-}" = required ]; then
        install "${packages[@]}" || true
        if ! links "${libraries[@]}"; then
            say "ROWMILL_PEERS is 'required', but no program links with ${libraries[*]}: apt install ${packages[*]}"
            exit 1
        fi
    fi
    if links "${libraries[@]}"; then
        features+=("rowmill-bench/$name")
    else
        say "no program links with ${libraries[*]} (Debian: ${packages[*]}), so the adapter of $name is not compiled"
    fi
done
(IFS=,; echo "${features[*]}")
