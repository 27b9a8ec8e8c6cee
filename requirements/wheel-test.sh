#!/bin/sh
# Builds the wheel, installs it into an environment of its own beside the developers' packages, and runs the tests
# against it from a directory where the source tree cannot be imported. Usage: wheel-test.sh PYTHON [pytest arguments]
set -eu
python=$1
shift
root=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m build --wheel --no-isolation --outdir "$work/dist" . >/dev/null
"$python" -m venv "$work/venv"
# The developers' environment lends its packages (torch alone is most of a gigabyte), but not its editable caboose.
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$packages" >"$own/borrowed.pth"
"$work/venv/bin/python" -m pip install --quiet --no-deps --force-reinstall "$work"/dist/*.whl
cp -r "$root/tests" "$root/docs" "$root/dashboards" "$root/pyproject.toml" "$root"/*.md "$root/LICENSE" "$work/"
cd "$work"
# A wheel carries everything the product needs at run time, or the tests fail here.
"$work/venv/bin/python" -c '
import caboose, caboose_daemon, caboose_plots, caboose_wire
for module in (caboose, caboose_daemon, caboose_plots, caboose_wire):
    assert "/venv/" in module.__file__, module.__file__
'
"$root/requirements/tests.sh" "$work/venv/bin/python" "$@"
