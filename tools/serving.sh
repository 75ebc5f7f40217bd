#!/usr/bin/env bash
# Brings what tests of serving ask workers with, from Debian packages: promtool, unpacked under .tools, and a chromium
# without windows, installed with apt. Does nothing where both are there.
set -euo pipefail
cd "$(dirname "$0")/.."

part=serving
source tools/apt.sh
promtool=.tools/prometheus/usr/bin/promtool
browsers="chromium-headless-shell chromium chromium-browser google-chrome"

has_browser() {
    local name
    for name in $browsers; do
        if command -v "$name" >/dev/null; then return; fi
    done
    return 1
}

if ! [ -x "$promtool" ]; then
    apt_update "put promtool of Prometheus at $promtool"
    apt_unpack .tools/prometheus prometheus
fi

if ! has_browser; then
    apt_update "install one of $browsers"
    apt_install chromium-headless-shell fonts-dejavu-core
fi
