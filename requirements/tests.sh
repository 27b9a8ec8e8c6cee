#!/bin/sh
# Runs pytest. What fails beside others is run once more with the machine to itself, and decides then: real sockets, ranks
# and browsers on a machine with too much to do miss deadlines that are not about them. Both verdicts are printed.
# Usage: tests.sh PYTHON [pytest arguments, with -n for those that run beside each other]
set -u
python=$1
shift
"$python" -m pytest "$@"
code=$?
[ "$code" = 1 ] || exit "$code" # 1: tests failed; anything else is no verdict on a test
echo "Once more, one after the other: what failed above"
exec "$python" -m pytest "$@" -n 0 --last-failed --last-failed-no-failures none
