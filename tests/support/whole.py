"""Runs the whole engine in its own process: its tasks and its results."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

NAMES = ["A1", "B1", "C1", "A2", "B2", "C2", "A3", "B3"]


def worked_prompts(shared: int, own: int, seed: int = 0) -> dict[str, list[int]]:
    """Three tenants take turns; prompts of a tenant share so many tokens."""
    rnd = random.Random(seed)
    heads = {tenant: [rnd.randrange(20, 1000) for _ in range(shared)] for tenant in "ABC"}
    return {name: heads[name[0]] + [rnd.randrange(20, 1000) for _ in range(own)] for name in NAMES}


def run_python(folder: Path, *words: str, status: int = 0, **environ: Any) -> str:
    """Run Python with these words in a folder; what it wrote to standard error, and output behind it."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == status, done.stderr[-4000:]
    return done.stderr + done.stdout


def run_engine(
    script: Path, folder: Path, model: str, runs: list[dict[str, Any]], **environ: Any
) -> tuple[list[dict[str, Any]], str]:
    """What `engine_run.py` makes of these runs, and what it wrote."""
    folder.mkdir(exist_ok=True)
    task, result = folder / "task.json", folder / "result.json"
    task.write_text(json.dumps({"model": model, "runs": runs}))
    said = run_python(folder, str(script), str(task), str(result), **environ)
    found: list[dict[str, Any]] = json.loads(result.read_text())
    return found, said


def lay_over(engine: str, patches: list[Path], folder: Path) -> str:
    """Lay a patched copy of the installed engine into a folder; the complaint if the first does not fit."""
    upstream = patches[0].parent
    sys.path.insert(0, str(upstream))
    try:
        overlay: Any = importlib.import_module("overlay")
    finally:
        sys.path.remove(str(upstream))
    site = overlay.installed(engine)
    assert site is not None
    complaint = str(overlay.apply(patches[0], site, "--check") or "")
    if not complaint:
        overlay.lay(patches, site, folder)
    return complaint


def module_at(path: Path, name: str) -> Any:
    """A module by its file, under another name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_with(path: list[Path], folder: Path, *words: str) -> Any:
    """The JSON of the last line that Python writes which looks into `path` before all else."""
    said = run_python(folder, *words, PYTHONPATH=os.pathsep.join(map(str, path)), OMP_NUM_THREADS="1")
    return json.loads(said.splitlines()[-1])


def cached(row: dict[str, Any]) -> int:
    return sum(row["cached"].values())
