# Debian packages for tests, installed or unpacked; sourced by scripts that set `part`, the name in front of their messages.

say() { printf '%s: %s\n' "$part" "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

root=()
[ "$(id -u)" = 0 ] || root=(sudo)
# Started as root, apt works as a user of its own, who may lack access to .tools and to the temporary folder.
as_is=(-o APT::Sandbox::User=root)
apt_updated=false

# Bring the lists of packages up to date, once. The argument says what to do where apt is missing.
apt_update() {
    command -v apt-get >/dev/null || fail "no apt-get: $1"
    $apt_updated || "${root[@]}" apt-get "${as_is[@]}" update -qq >&2 || say "apt-get update failed: trying with the lists that are there"
    apt_updated=true
}

# Install packages, after `apt_update`.
apt_install() {
    say "installing $* with apt"
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >&2 || fail "cannot install $*"
}

# Unpack packages in a folder, in place of what it has, after `apt_update`. They are not installed.
apt_unpack() {
    local target=$1 folder file
    shift
    say "unpacking $* in $target"
    mkdir -p "$(dirname "$target")"
    folder=$(mktemp -d "$target.XXXXXX")
    if ! (cd "$folder" && apt-get "${as_is[@]}" download -qq "$@" >&2); then
        rm -rf "$folder"
        fail "cannot download $*"
    fi
    for file in "$folder"/*.deb; do dpkg-deb -x "$file" "$folder/unpacked"; done
    rm -rf "$target"
    mv "$folder/unpacked" "$target"
    rm -rf "$folder"
}
