#!/bin/sh
# Runs the smoke tests with another torch, and with another Python if PYTHON is one, in an environment of its own:
# .venv-torch-TORCH-pyVERSION, or VENV. PyPI's torch brings CUDA libraries: up to 3 GB are downloaded.
# Usage: torch-test.sh PYTHON TORCH [pytest arguments]
set -eu
python=$1
torch=$2
shift 2
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
venv=${VENV:-.venv-torch-$torch-py$version}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install -q --disable-pip-version-check "torch==$torch" -e '.[daemon,plots]' \
    'httpx>=0.28' 'hypothesis>=6.115' 'pytest>=8.3' 'pytest-timeout>=2.3' 'pytest-xdist>=3.6' 'pyyaml>=6.0'
"$venv/bin/python" -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)'
# A warning of another version is no failure. Tests that compile, and those of libraries, belong to the version of `make test`.
tests="tests/wire tests/agent/attachment/test_attach.py tests/agent/attachment/test_short_way.py
    tests/agent/attachment/test_no_code.py tests/agent/observe/test_gradients.py tests/agent/observe/test_samples.py
    tests/agent/observe/test_clipping.py tests/agent/observe/test_phases.py tests/agent/observe/test_loss_scale.py
    tests/agent/report/test_reports.py tests/agent/checkpoints/test_checkpoint_alone.py
    tests/agent/rollback/test_brake.py tests/agent/hunting/test_hunt_findings.py tests/agent/trials/test_diagnosing.py
    tests/integration/test_two_ranks.py"
# shellcheck disable=SC2086 # a list of words
exec "$venv/bin/python" -m pytest -q -W default -m "not long and not alone" "$@" $tests
