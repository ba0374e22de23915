#!/bin/sh
# make_env.sh VERSION FOLDER: an environment with that version of verl, without what it trains with.
#
# Its router module imports torch, for which a build for the CPU will do; TORCH_INDEX names another package index for it.
set -eu

version=$1
folder=$2
root=$(cd "$(dirname "$0")/../.." && pwd)

test -x "$folder/bin/python" || "${PYTHON:-python3}" -m venv "$folder"
echo "installing verl $version into $folder (minutes)"
"$folder/bin/python" -m pip install --quiet ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
"$folder/bin/python" -m pip install --quiet --requirement "$root/tests/verl/requirements.txt"
"$folder/bin/python" -m pip install --quiet --no-deps "verl==$version"
