#!/bin/sh
# make_env.sh VERSION FOLDER: an environment with that version of SGLang on the CPU.
#
# The requirements-*.txt beside this script are complete and installed without dependencies, which keeps out
# the CUDA builds of half of what SGLang asks for.  cpu_shims.py makes the rest import: see there.
# TORCH_INDEX names another package index for torch, for example one with builds for the CPU, which are
# smaller.
set -eu

version=$1
folder=$2
here=$(cd "$(dirname "$0")" && pwd)
list=$here/requirements-$version.txt
[ -f "$list" ] || { echo "no list of packages for SGLang $version: $list" >&2; exit 2; }

test -x "$folder/bin/python" || "${PYTHON:-python3}" -m venv "$folder"
echo "installing SGLang $version into $folder (minutes)"
"$folder/bin/python" -m pip install --quiet ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
"$folder/bin/python" -m pip install --quiet --no-deps --requirement "$list"

site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cp "$here/cpu_shims.py" "$site/sglang_cpu_shims.py"
echo 'import sglang_cpu_shims' > "$site/sglang_cpu_shims.pth"
