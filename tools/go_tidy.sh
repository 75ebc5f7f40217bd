#!/usr/bin/env bash
# Tidies go.mod and go.sum of the Go modules. `go mod tidy` works on one module at a time and ignores go.work, so this
# script gives each module the replacements of go.work for the time of the command.
set -euo pipefail
cd "$(dirname "$0")/../scheduler"
go=${GO:-../.tools/go-1.26.6/go/bin/go}
[[ $go == /* ]] || go=$PWD/$go
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

for module in placement plugin testplane; do
    (
        cd "$module"
        cp go.sum "$folder/with.sum"
        {
            cat go.mod
            sed -n '/^replace (/,/^)/s#=> \./#=> ../#; /^replace (/,/^)/p' ../go.work
        } >"$folder/with.mod"
        GOWORK=off "$go" mod tidy -modfile="$folder/with.mod"
        # The tidied file without its replacements.
        sed -e '/^replace (/,/^)/d' -e '/^replace /d' "$folder/with.mod" | cat -s | sed "\$ { /^\$/ d }" >go.mod
        cp "$folder/with.sum" go.sum
    )
done
"$go" work sync
