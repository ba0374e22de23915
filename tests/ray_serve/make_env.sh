#!/bin/sh
# make_env.sh VERSION FOLDER: an environment with that version of Ray Serve, and a vLLM that runs whole on the CPU.
set -eu

version=$1
folder=$2
root=$(cd "$(dirname "$0")/../.." && pwd)

"$root/tests/vllm/make_env.sh" 0.32.0 "$folder"
echo "installing Ray Serve $version into $folder"
"$folder/bin/python" -m pip install --quiet --requirement "$root/tests/ray_serve/requirements.txt" "ray==$version"
