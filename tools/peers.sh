#!/usr/bin/env bash
# The features of rowmill-bench whose libraries this machine has, for cargo; why others are left out goes to
# the screen. A library counts as there when a program links with it, as a build of its feature does.
#
# With ROWMILL_PEERS=required the Debian packages of those that are missing are installed by apt, and what is
# missing then is an error.
set -euo pipefail

# engine | libraries that its adapter links | Debian packages they are in
peers=(
    "rocksdb|rocksdb|librocksdb-dev"
    "lmdb|lmdb|liblmdb-dev"
    "wiredtiger|wiredtiger|libwiredtiger-dev"
    "faster|aio tbb uuid stdc++fs|libaio-dev libtbb-dev uuid-dev g++"
)

say() { printf 'peers: %s\n' "$*" >&2; }

# links LIBRARY...
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
            say "ROWMILL_PEERS is 'required', but nothing links with ${libraries[*]}: apt install ${packages[*]}"
            exit 1
        fi
    fi
    if links "${libraries[@]}"; then
        features+=("rowmill-bench/$name")
    else
        say "nothing links with ${libraries[*]} (Debian: ${packages[*]}), so the adapter of $name is not compiled"
    fi
done
(IFS=,; echo "${features[*]}")
