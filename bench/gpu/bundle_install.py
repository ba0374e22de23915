"""Puts the bundle together on the GPU host: `bundle_install.py PIECES SITE`, from the checkout's root.

Joins the pieces of `bundle_pack.py`, checks their sums, unpacks them into SITE, compiles `peek` into it
and imports what the comparison needs.  Afterwards `PYTHONPATH=SITE python bench/gpu/run.py ...` runs.
Exit status 1, with the reason, if anything is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

HOST_HAS: Final = ("torch", "triton", "transformers", "tokenizers", "safetensors", "numpy", "setuptools")

CHECK: Final = """
import torch
assert torch.__version__.startswith("2.11."), f"torch is {torch.__version__}, not 2.11"
assert torch.cuda.is_available(), "torch sees no GPU"
import vllm._C, vllm._C_stable_libtorch
import vllm.v1.engine.async_llm, vllm.v1.worker.gpu_worker, vllm.model_executor.models.qwen2
import vllm.v1.attention.backends.flash_attn
import peek
from peek.adapters.vllm import PeekAsyncScheduler
assert peek.backend() == "compiled", f"peek is {peek.backend()}"
print("vllm", vllm.__version__, "torch", torch.__version__, "peek", peek.__version__, peek.backend(),
      torch.cuda.get_device_name())
"""


def join(pieces: Path, whole: Path) -> None:
    """Write the pieces one behind another, each checked."""
    with whole.open("wb") as sink:
        for name, wanted in json.loads((pieces / "pieces.json").read_text()).items():
            path = pieces / name
            if not path.exists():
                sys.exit(f"{path} is missing: carry every piece that pieces.json names")
            piece = path.read_bytes()
            if hashlib.sha256(piece).hexdigest() != wanted:
                sys.exit(f"{path} is damaged: its checksum is not that of pieces.json")
            sink.write(piece)


def unpack(whole: Path, site: Path) -> None:
    parent = site.parent
    with tarfile.open(whole) as archive:
        archive.extractall(parent, filter="data")
    if parent / "site" != site:
        (parent / "site").rename(site)
    whole.unlink()


def compile_peek(site: Path, environ: dict[str, str]) -> None:
    """Build `peek` from the checkout with mypyc, in a copy, and put it beside the packages."""
    work = site.parent / "peek-build"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(name, work)
    shutil.copytree("peek", work / "peek", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=work, env={**environ, "PEEK_PURE": "0"}, check=True)
    shutil.copytree(work / "peek", site / "peek", dirs_exist_ok=True)
    for shared in work.glob("*__mypyc*.so"):
        shutil.copy(shared, site)


def _imports(name: str, environ: dict[str, str]) -> bool:
    command = [sys.executable, "-c", f"import {name}"]
    return subprocess.run(command, env=environ, capture_output=True).returncode == 0


def main(pieces: Path, site: Path) -> None:
    if site.exists():
        sys.exit(f"{site} exists already")
    site.parent.mkdir(parents=True, exist_ok=True)
    whole = site.parent / "site.tar.xz"
    join(pieces, whole)
    unpack(whole, site)
    environ = {**os.environ, "PYTHONPATH": str(site)}
    missing = [name for name in HOST_HAS if not _imports(name, environ)]
    if missing:
        sys.exit(f"the host lacks {', '.join(missing)}, which the bundle leaves to it")
    compile_peek(site, environ)
    checked = subprocess.run([sys.executable, "-c", CHECK], env=environ, cwd=site.parent)
    if checked.returncode:
        sys.exit("the installed packages do not work together; the line above says where")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
