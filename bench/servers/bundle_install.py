"""Assembles the bundle on the GPU host: `python -m bench.servers.bundle_install PIECES SITE`.

Joins the pieces of `bundle_pack.py`, checks their sums, unpacks them into SITE and imports what the
comparison needs.  Afterwards `PYTHONSAFEPATH=1 PYTHONPATH=SITE:. python -m bench.servers.run ...` works.
Exit status 1, with the reason, if anything is missing.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
HOST_HAS: Final = (
    "torch", "torchvision", "triton", "transformers", "tokenizers", "safetensors", "sentencepiece",
    "tiktoken", "huggingface_hub", "numpy", "einops", "psutil", "yaml", "requests", "aiohttp", "uvloop",
    "prometheus_client", "PIL", "cv2", "regex", "cloudpickle", "jinja2", "tqdm", "packaging", "setuptools",
    "cpuinfo", "sortedcontainers", "typer", "rich",
)  # fmt: skip

CHECK: Final = """
import torch, triton
assert torch.__version__.startswith("2.11."), f"torch is {torch.__version__}, not 2.11"
assert torch.cuda.is_available(), "torch sees no GPU"
assert torch.cuda.get_device_capability()[0] == 9, "no Hopper, and the bundle has only its FlashAttention"
triton.runtime.driver.active.get_current_target()  # Triton compiles for every kernel, with Python's headers
import vllm._C_stable_libtorch, vllm._moe_C_stable_libtorch, vllm.vllm_flash_attn._vllm_fa3_C
import vllm.entrypoints.cli.main, vllm.entrypoints.openai.api_server, vllm.benchmarks.serve
import vllm.v1.worker.gpu_worker, vllm.model_executor.models.llama
import vllm.v1.worker.gpu_model_runner, vllm.v1.attention.backends.flash_attn
from vllm.platforms import current_platform
from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
assert current_platform.is_cuda(), f"vLLM takes this host for {current_platform}"
assert get_flash_attn_version() == 3, f"FlashAttention is version {get_flash_attn_version()}"
import peek
from peek.adapters.vllm import PeekAsyncScheduler
assert peek.backend() == "compiled", f"peek is {peek.backend()}"
print("vllm", vllm.__version__, "torch", torch.__version__, "peek", peek.__version__, peek.backend(),
      torch.cuda.get_device_name())
"""


def join(pieces: Path, whole: Path) -> None:
    """Write the pieces one after another, and check each."""
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


def lacking(environ: dict[str, str]) -> list[str]:
    """Return the missing packages that the bundle leaves to the host."""
    finds = "import importlib.util, sys; print(*[n for n in sys.argv[1:] if not importlib.util.find_spec(n)])"
    command = [sys.executable, "-c", finds, *HOST_HAS]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.split()


def differing(site: Path) -> list[str]:
    """Return sources of `peek` that differ from this checkout's: results would be of another version."""
    sources = {path.relative_to(ROOT) for path in (ROOT / "peek").rglob("*.py")}
    _, other, absent = filecmp.cmpfiles(ROOT, site, map(str, sources), shallow=False)
    return sorted(other + absent)


def main(pieces: Path, site: Path) -> None:
    if site.exists():
        sys.exit(f"{site} exists already")
    site.parent.mkdir(parents=True, exist_ok=True)
    whole = site.parent / "site.tar.xz"
    join(pieces, whole)
    unpack(whole, site)
    environ = {**os.environ, "PYTHONPATH": str(site)}
    if missing := lacking(environ):
        sys.exit(f"the host lacks {', '.join(missing)}, which the bundle leaves to it")
    if stale := differing(site):
        sys.exit(f"the bundle's {stale[0]} is not this checkout's: pack it again")
    checked = subprocess.run([sys.executable, "-c", CHECK], env=environ, cwd=site.parent)
    if checked.returncode:
        sys.exit("the installed packages do not work together; the line above says where")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
