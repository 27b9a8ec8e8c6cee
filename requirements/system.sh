#!/bin/sh
# Installs the Debian packages a target needs, or prints which to install. Usage: system.sh venv PYTHON | tests
set -eu

missing=""
case "$1" in
venv)
    # Debian's python3 comes without ensurepip; other builds have it.
    "$2" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
        echo "Caboose needs Python 3.11 or later; '$2' is not. Set PYTHON=/path/to/python3.11" >&2
        exit 2
    }
    "$2" -c 'import ensurepip, venv' 2>/dev/null || missing="python3-venv"
    ;;
tests)
    command -v promtool >/dev/null 2>&1 || missing="$missing prometheus"
    command -v amtool >/dev/null 2>&1 || missing="$missing prometheus-alertmanager"
    command -v systemd-analyze >/dev/null 2>&1 || missing="$missing systemd"
    command -v victoria-metrics >/dev/null 2>&1 || missing="$missing victoria-metrics"
    command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
    set -- /usr/lib/postgresql/*/bin/initdb # Debian's servers are not in the path
    command -v initdb >/dev/null 2>&1 || [ -x "$1" ] || missing="$missing postgresql"
    command -v kubectl >/dev/null 2>&1 || missing="$missing kubernetes-client"
    ;;
esac

[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Please install first:  sudo apt-get install$missing" >&2
    exit 2
fi
echo "Installing Debian packages:$missing ..."
export DEBIAN_FRONTEND=noninteractive
# A package that starts a service here would hold Prometheus' port; nothing is started.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing >/dev/null
