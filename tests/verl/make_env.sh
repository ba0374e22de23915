#!/bin/sh
# make_env.sh VERSION FOLDER [ENGINE]: an environment with that version of verl, without what it trains with.
#
# Its router module imports torch, for which a build for the CPU will do; TORCH_INDEX names another package index for
# it.  ENGINE is an environment with vLLM (tests/vllm/make_env.sh) whose packages, torch too, are found from this one.
set -eu

version=$1
folder=$2
engine=${3:-}
root=$(cd "$(dirname "$0")/../.." && pwd)

test -x "$folder/bin/python" || "${PYTHON:-python3}" -m venv "$folder"
echo "installing verl $version into $folder (minutes)"
if [ -n "$engine" ]; then
  packages='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$engine/bin/python" -c "$packages" > "$("$folder/bin/python" -c "$packages")/engine.pth"
else
  "$folder/bin/python" -m pip install --quiet ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
fi
"$folder/bin/python" -m pip install --quiet --requirement "$root/tests/verl/requirements.txt"
"$folder/bin/python" -m pip install --quiet --no-deps "verl==$version"
