#!/usr/bin/env bash
# Brings what tests of storage nodes need, from Debian packages: qemu (emulation of a processor) and tshark, installed with apt;
# and for the virtual machine, unpacked under .tools/guest and never installed: the kernel, nvme-cli and BusyBox. Installing
# a kernel would upgrade systemd and add an entry to the boot menu. Does nothing where all are there.
set -euo pipefail
cd "$(dirname "$0")/.."

guest=.tools/guest
# The kernel that tests are written for: the oldest that is still in wide use, and one that is stable under emulation.
kernel=6.1
# What nvme-cli needs besides libraries of every Debian system.
guest_packages="nvme-cli libnvme1 libjson-c5 busybox-static"

say() { printf 'storage: %s\n' "$*" >&2; }
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
    command -v apt-get >/dev/null || fail "no apt-get: $1"
    $apt_updated || "${root[@]}" apt-get "${as_is[@]}" update -qq >&2 || say "apt-get update failed: trying with the lists that are there"
    apt_updated=true
}

# The package of the newest kernel of this version, which the package without a version depends on.
kernel_package() {
    apt-cache depends linux-image-cloud-amd64 | sed -n "s/.*Depends: \(linux-image-${kernel//./\\.}\..*\)/\1/p"
}

if ! compgen -G "$guest/boot/vmlinuz-$kernel.*" >/dev/null; then
    update "unpack a Linux kernel $kernel and $guest_packages in $guest"
    package=$(kernel_package)
    [ -n "$package" ] || fail "apt offers no linux-image-$kernel for cloud machines: this needs Debian 12"
    mkdir -p .tools
    folder=$(mktemp -d .tools/guest.XXXXXX)
    trap 'rm -rf "$folder"' EXIT
    say "unpacking $package and $guest_packages under .tools"
    # shellcheck disable=SC2086
    (cd "$folder" && apt-get "${as_is[@]}" download -qq "$package" $guest_packages >&2) || fail "cannot download packages"
    for file in "$folder"/*.deb; do dpkg-deb -x "$file" "$folder/unpacked"; done
    rm -rf "$guest"
    mv "$folder/unpacked" "$guest"
fi

missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
# It brings dumpcap. Its question is whether other users may capture: no.
command -v tshark >/dev/null || missing+=(tshark)
if ((${#missing[@]})); then
    update "install ${missing[*]}"
    say "installing ${missing[*]} with apt"
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 || fail "cannot install ${missing[*]}"
fi
