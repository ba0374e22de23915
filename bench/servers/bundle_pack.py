"""Packs what a GPU host without a network needs: `python3.12 -m bench.servers.bundle_pack FOLDER`.

vLLM 0.24.0 is built for torch 2.11 and CUDA 13.  The bundle is a folder of importable packages for Python
3.12 on x86-64, without what this comparison never loads.  It is packed and cut into pieces below 64 MiB, the
limit of a transfer; `bundle_install.py` joins them.  Needs pip, a C compiler and a network.

What the host has already (torch, triton, transformers and their dependencies) is not packed;
`bundle_install.py` checks that it is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PIECE_BYTES: Final = 60 << 20

WHEELS: Final = (
    "vllm==0.24.0",
    # what vLLM imports on the way to a dense model, besides what the host has
    "blake3", "cachetools", "cbor2", "compressed-tensors==0.17.0", "depyf==0.20.0", "astor", "dill",
    "diskcache==5.6.3", "gguf>=0.17.0", "ijson", "lark==1.2.2", "llguidance>=1.7.0,<1.8.0", "loguru",
    "lm-format-enforcer==0.11.3", "interegular", "msgspec", "openai>=2.0.0,<2.9", "distro", "jiter",
    "sniffio",
    "openai-harmony", "outlines_core==0.2.14", "partial-json-parser", "pybase64", "python-json-logger",
    "pyzmq>=25.0.0", "setproctitle", "xgrammar==0.2.1", "apache-tvm-ffi==0.1.9",
    "mistral_common>=1.11.3", "jsonschema", "jsonschema-specifications", "referencing", "rpds-py",
    "pydantic-extra-types", "pycountry", "fastapi>=0.133.0,<0.137.0", "starlette>=1.0.1",
    "opentelemetry-api>=1.27.0", "opentelemetry-sdk>=1.27.0", "opentelemetry-semantic-conventions",
    "importlib-metadata<9",
    "uvicorn", "h11", "watchfiles", "model-hosting-container-standards<1", "jmespath", "python-multipart",
    "email-validator", "dnspython", "prometheus-fastapi-instrumentator",
    "librt>=0.16,<1", "mypy-extensions",  # of the compiled `peek`
)  # fmt: skip

# A package and the one version of its core that it insists on come from one resolution.
RESOLVED: Final = ("pydantic>=2.12.0",)

TRIMMED: Final = (
    "vllm/vllm-rs",  # the front end in Rust
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",  # Hopper runs version 3
    "vllm/_flashmla_C.abi3.so",
    "vllm/_flashmla_extension_C.abi3.so",
    "vllm/third_party/deep_gemm",
    "vllm/third_party/fmha_sm100",
    "vllm/entrypoints/serve/instrumentator/static",
    "mistral_common/data",
    "xgrammar/lib",  # a library to link against
    "bin",
)

PLATFORMS: Final = (
    "manylinux_2_39_x86_64", "manylinux_2_35_x86_64", "manylinux_2_34_x86_64", "manylinux_2_31_x86_64",
    "manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64",
    "manylinux_2_12_x86_64", "manylinux2010_x86_64", "manylinux_2_5_x86_64", "manylinux1_x86_64",
)  # fmt: skip


def install(site: Path) -> None:
    """Unpack all wheels into `site`.

    One command for all of a kind: pip replaces whole folders, and several wheels have a part of
    `opentelemetry`.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site), "--upgrade"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", "3.12", "--no-compile"]
    command += [f"--platform={name}" for name in PLATFORMS]
    for wanted in (RESOLVED, ("--no-deps", *WHEELS)):
        if subprocess.run([*command, *wanted]).returncode:
            sys.exit(
                "pip has named what is not there for Python 3.12 on x86-64: the bundle would be incomplete"
            )


def install_peek(site: Path) -> None:
    """Compile `peek` from the checkout and put it beside the packages.

    Not on the host: it may lack a compiler, and mypy would check the adapter against vLLM's types there.
    """
    with tempfile.TemporaryDirectory(prefix="peek-wheel-") as folder:
        source = Path(folder, "source")
        shutil.copytree(ROOT / "peek", source / "peek", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        pip = [sys.executable, "-m", "pip"]
        environ = {**os.environ, "PEEK_PURE": "0"}
        subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", folder, str(source)], env=environ, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(site), str(wheel)], check=True)


def trim(site: Path) -> None:
    """Remove what is never loaded; a name that is gone is an error, since the list is then out of date."""
    for name in TRIMMED:
        path = site / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def pack(site: Path, folder: Path) -> None:
    """Write `site.tar.xz` in numbered pieces, and `pieces.json` with their checksums."""
    whole = folder / "site.tar.xz"
    with tarfile.open(whole, "w:xz", preset=3) as archive:
        archive.add(site, "site")
    sums: dict[str, str] = {}
    with whole.open("rb") as packed:
        while piece := packed.read(PIECE_BYTES):
            path = folder / f"site.{len(sums):02}"
            path.write_bytes(piece)
            sums[path.name] = hashlib.sha256(piece).hexdigest()
    whole.unlink()
    (folder / "pieces.json").write_text(json.dumps(sums, indent=1))
    for name in sums:
        print(f"{name}: {(folder / name).stat().st_size / (1 << 20):.1f} MiB")


def main(folder: Path) -> None:
    if sys.version_info[:2] != (3, 12):
        sys.exit("the bundle is for Python 3.12, and `peek` is compiled by the Python that runs this")
    site = folder / "unpacked"
    shutil.rmtree(site, ignore_errors=True)
    for old in folder.glob("site.*"):
        old.unlink()
    site.mkdir(parents=True)
    install(site)
    install_peek(site)
    trim(site)
    pack(site, folder)
    shutil.rmtree(site)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
