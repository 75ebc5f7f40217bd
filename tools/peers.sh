#!/usr/bin/env bash
# The features of rowmill-bench whose libraries this machine has, for cargo; why others are left out goes to
# the screen. A library counts as there when a program links with it, as a build of its feature does.
# With ROWMILL_PEERS=required a library that is missing is an error.
set -euo pipefail

features=()
for peer in rocksdb lmdb; do
    if echo 'int main(void) { return 0; }' | cc -x c - -o /dev/null "-l$peer" 2>/dev/null; then
        features+=("rowmill-bench/$peer")
    elif [ "${ROWMILL_PEERS:-}" = required ]; then
        echo "peers: no lib$peer to link, and ROWMILL_PEERS is 'required': apt install lib$peer-dev" >&2
        exit 1
    else
        echo "peers: no lib$peer to link (Debian: lib$peer-dev), so its adapter is not compiled" >&2
    fi
done
(IFS=,; echo "${features[*]}")
