#!/bin/sh
# Watches an unchanged training script.
#
#     caboose daemon &
#     examples/no_code.sh                                   # train.py, beside this file
#     examples/no_code.sh train.py --its own --arguments    # yours
#
# For several ranks, torchrun does the same: torchrun --nproc-per-node 8 -m caboose train.py ...
set -eu
test $# -gt 0 || set -- "$(dirname "$0")/train.py"
exec "${PYTHON:-python3}" -m caboose "$@"
