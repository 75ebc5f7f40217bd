#!/usr/bin/env bash
# Brings what tests of storage nodes need, from Debian packages: qemu (emulation of a processor) and tshark, installed with apt;
# and for the virtual machine, unpacked under .tools/guest and never installed: the kernel, nvme-cli and BusyBox. Installing
# a kernel would upgrade systemd and add an entry to the boot menu. Does nothing where all are there.
set -euo pipefail
cd "$(dirname "$0")/.."

part=storage
source tools/apt.sh
guest=.tools/guest
# The kernel that tests are written for: the oldest that is still in wide use, and one that is stable under emulation.
kernel=6.1
# What nvme-cli needs besides libraries of every Debian system.
guest_packages=(nvme-cli libnvme1 libjson-c5 busybox-static)

# The package of the newest kernel of this version, which the package without a version depends on.
kernel_package() {
    apt-cache depends linux-image-cloud-amd64 | sed -n "s/.*Depends: \(linux-image-${kernel//./\\.}\..*\)/\1/p"
}

if ! compgen -G "$guest/boot/vmlinuz-$kernel.*" >/dev/null; then
    apt_update "unpack a Linux kernel $kernel and ${guest_packages[*]} in $guest"
    package=$(kernel_package)
    [ -n "$package" ] || fail "apt offers no linux-image-$kernel for cloud machines: this needs Debian 12"
    apt_unpack "$guest" "$package" "${guest_packages[@]}"
fi

missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
# It brings dumpcap. Its question is whether other users may capture: no.
command -v tshark >/dev/null || missing+=(tshark)
if ((${#missing[@]})); then
    apt_update "install ${missing[*]}"
    apt_install "${missing[@]}"
fi
