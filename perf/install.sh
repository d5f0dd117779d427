# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Sourced by the scripts that install what they need. Before install_missing, $packages names it.

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "$(basename "$0"): needs root or sudo for: $*" >&2
        return 1
    fi
}

# Says nothing unless it fails.
quietly() {
    if ! output=$("$@" 2>&1); then
        printf '%s\n' "$output" >&2
        echo "$(basename "$0"): failed: $*" >&2
        return 1
    fi
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

install_missing() {
    missing=
    for package in $packages; do
        is_installed "$package" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "$(basename "$0"): not a Debian system, assuming that these are here:$missing" >&2
        return 0
    fi
    echo "$(basename "$0"): installing$missing"
    quietly as_root apt-get update
    # shellcheck disable=SC2086 # a list
    quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        $missing
}
