# ruff: noqa: T201
"""vLLM's own tests of its scheduler and KV cache, on its own scheduler and on `peek`'s.

    OMP_NUM_THREADS=1 python tests/vllm/own_suite.py vllm-0.32.0.tar.gz [pytest arguments]

The archive is vLLM's source distribution (see docs/vllm.md for how to get it).  Its `tests/v1/core` run in a
copy: stock, and stock beside `peek` in the place of vLLM's two schedulers, with prefix caching where a test
does not say otherwise, then with equal prompts, too.  Prints how many passed, what differs within a pair, and
in how many tests `peek` planned.  Without a network, models are known by a `config.json` made by hand, and
tests of models that have none fail in all runs.

In the runs this file is a plug-in of pytest's.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = "tests/v1/core"
NEEDED = (TESTS, "tests/v1/kv_connector/unit", "tests/utils.py", "tests/v1/utils.py")
PACKAGES = ("tests/__init__.py", "tests/v1/__init__.py", "tests/v1/kv_connector/__init__.py")
MODELS = ("facebook/opt-125m", "facebook/opt-350m", "Qwen/Qwen3-0.6B")
CACHING, SHARING = {"OWN_CACHING": "1"}, {"OWN_CACHING": "1", "OWN_SHARING": "1"}
PEEK = {"PEEK_POLICY": "peek"}
RUNS: dict[str, dict[str, str]] = {
    "stock": {},
    "caching": CACHING,
    "caching, peek": {**CACHING, **PEEK},
    "sharing": SHARING,
    "sharing, peek": {**SHARING, **PEEK},
}
OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    "ffn_dim": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
    "bos_token_id": 2,
    "eos_token_id": 2,
}


# -- the plug-in ---------------------------------------------------------------------------------------

made: list[Any] = []
"""Schedulers of the test that runs."""
outcomes: dict[str, dict[str, Any]] = {}


def pytest_configure() -> None:
    """Before a test module is imported: the schedulers that it will find."""
    if not os.environ.get("PEEK_POLICY"):
        return
    from vllm.v1.core.sched import async_scheduler, scheduler

    from peek.adapters.vllm import PeekAsyncScheduler, PeekScheduler

    for cls in (PeekScheduler, PeekAsyncScheduler):
        attach(cls)
    async_scheduler.AsyncScheduler = PeekAsyncScheduler
    scheduler.Scheduler = PeekScheduler


def attach(cls: Any) -> None:
    """Have a class remember what is made of it."""
    inner = cls.__init__

    def remembered(self: Any, *args: Any, **kwargs: Any) -> None:
        inner(self, *args, **kwargs)
        made.append(self)

    cls.__init__ = remembered


def pytest_collection_modifyitems(items: list[Any]) -> None:
    asked = {"OWN_CACHING": "enable_prefix_caching", "OWN_SHARING": "same_prompt"}
    for parameter in [asked[name] for name in asked if os.environ.get(name)]:
        for module in {item.module for item in items}:
            for name, function in inspect.getmembers(module, inspect.isfunction):
                if name.startswith(("create_scheduler", "create_requests")):
                    true_by_default(function, parameter)


def true_by_default(function: Any, parameter: str) -> None:
    """An argument of vLLM's helpers, where a caller does not say."""
    optional = [
        name for name, p in inspect.signature(function).parameters.items() if p.default is not p.empty
    ]
    if parameter in optional and function.__defaults__ and len(optional) == len(function.__defaults__):
        values = list(function.__defaults__)
        values[optional.index(parameter)] = True
        function.__defaults__ = tuple(values)


def pytest_runtest_setup() -> None:
    made.clear()


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        row = outcomes.setdefault(report.nodeid, {"outcome": report.outcome, "seen": {}})
        row["outcome"] = report.outcome
        row["seen"] = dict(seen())


def seen() -> Iterator[tuple[str, int]]:
    """What `peek` did in the test that has ended."""
    beside = [scheduler.peek for scheduler in made if hasattr(scheduler, "peek")]
    adapters = [attachment.adapter for attachment in beside if attachment.adapter is not None]
    yield "schedulers", len(beside)
    yield "attached", len(adapters)
    yield "plans", sum(attachment.seen.plan_s.total for attachment in beside)
    yield "reordered", sum(adapter.reordered for adapter in adapters)
    yield "fallbacks", sum(attachment.shield.fallbacks for attachment in beside)
    yield "quarantined", sum(adapter.quarantine.total for adapter in adapters)


def pytest_sessionfinish() -> None:
    if "OWN_RESULT" in os.environ:
        Path(os.environ["OWN_RESULT"]).write_text(json.dumps(outcomes))


# -- the three runs ------------------------------------------------------------------------------------


def unpack(archive: str, folder: Path) -> None:
    """The tests, without vLLM's own `conftest.py`, which wants models and networks."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            _, _, path = member.name.partition("/")
            if path.startswith(NEEDED) or path in PACKAGES:
                member.name = path
                tar.extract(member, folder, filter="data")
    for model in MODELS:
        (folder / model).mkdir(parents=True, exist_ok=True)
        (folder / model / "config.json").write_text(json.dumps(OPT))


def run(folder: Path, name: str, arguments: list[str]) -> dict[str, Any]:
    result = folder / f"{name}.json"
    here = str(Path(__file__).parent)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PEEK_")}
    environ = {**clean, **RUNS[name], "OWN_RESULT": str(result), "HF_HUB_OFFLINE": "1"}
    environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-p", "own_suite", "--noconftest", "-p", "no:cacheprovider"]
    subprocess.run([*command, "-q", "--tb=no", TESTS, *arguments], cwd=folder, env=environ, check=False)
    return dict(json.loads(result.read_text()))


def main() -> None:
    archive, arguments = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        unpack(archive, folder)
        rows = {name: run(folder, name, arguments) for name in RUNS}
    for name, row in rows.items():
        counts = Counter(test["outcome"] for test in row.values())
        print(f"{name:13}", ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    for before, after in (("caching", "caching, peek"), ("sharing", "sharing, peek")):
        compare(rows[before], rows[after])


def compare(before: dict[str, Any], after: dict[str, Any]) -> None:
    for key in ("schedulers", "attached", "plans", "reordered", "fallbacks", "quarantined"):
        numbers = [test["seen"].get(key, 0) for test in after.values()]
        print(f"{key}: {sum(numbers)}, in {sum(number > 0 for number in numbers)} tests")
    for test in sorted({*before, *after}):
        outcomes = [rows.get(test, {}).get("outcome") for rows in (before, after)]
        if outcomes[0] != outcomes[1]:
            print(f"{test}: {outcomes[0]} -> {outcomes[1]}")


if __name__ == "__main__":
    main()
