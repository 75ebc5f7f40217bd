#!/usr/bin/env bash
# Brings what tests of serving ask workers with, from Debian packages: promtool, unpacked under .tools, and a chromium
# without windows, installed with apt. Does nothing where both are there.
set -euo pipefail
cd "$(dirname "$0")/.."

promtool=.tools/prometheus/usr/bin/promtool
browsers="chromium-headless-shell chromium chromium-browser google-chrome"

say() { printf 'serving: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

root=()
[ "$(id -u)" = 0 ] || root=(sudo)

# Started as root, apt works as a user of its own, who may lack access to .tools and to the temporary folder.
as_is=(-o APT::Sandbox::User=root)
apt_updated=false
update() {
    $apt_updated || "${root[@]}" apt-get "${as_is[@]}" update -qq >&2 || say "apt-get update failed: trying with the lists that are there"
    apt_updated=true
}

has_browser() {
    local name
    for name in $browsers; do
        if command -v "$name" >/dev/null; then return; fi
    done
    return 1
}

if ! [ -x "$promtool" ]; then
    command -v apt-get >/dev/null || fail "no apt-get: put promtool of Prometheus at $promtool"
    update
    mkdir -p .tools
    folder=$(mktemp -d .tools/prometheus.XXXXXX)
    trap 'rm -rf "$folder"' EXIT
    say "unpacking the package prometheus under .tools"
    (cd "$folder" && apt-get "${as_is[@]}" download -qq prometheus >&2) || fail "cannot download the package prometheus, which has promtool"
    dpkg-deb -x "$folder"/prometheus_*.deb "$folder/unpacked"
    rm -rf .tools/prometheus
    mv "$folder/unpacked" .tools/prometheus
fi

if ! has_browser; then
    command -v apt-get >/dev/null || fail "no browser: install one of $browsers"
    update
    say "installing chromium-headless-shell with apt"
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends chromium-headless-shell fonts-dejavu-core >&2 ||
        fail "cannot install a browser: install one of $browsers"
fi
