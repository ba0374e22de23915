"""The line at start: active or not and why, engine, cache, options; where an operator sees it."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.attached import ToyEngine, toy_attachment

from peek import PeekConfig
from peek.adapters.activation import Settings
from peek.adapters.engine_adapter import LOOKS, EngineInfo, Generated
from peek.adapters.lifecycle import Attachment
from peek.adapters.sglang.plugin import ranks_of_one_queue, sglang_info
from peek.adapters.vllm.scheduler import vllm_info


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_the_line_says_it_all(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "peek"):
        toy_attachment(ToyEngine(), fair_share=0.1)
    (line,) = lines(caplog)
    assert line.startswith(
        "peek: active; toy 1.0, model m, rank 0.0, cache none; policy=peek objective=balanced"
    )
    for option in ("fair_share=0.1", "eviction=lru", "grace_tokens=500000.0", "strict=false"):
        assert option in line
    assert set(PeekConfig().as_dict()) <= {word.split("=")[0] for word in line.split("; ")[2].split()}


def test_why_not(caplog: pytest.LogCaptureFixture) -> None:
    engine = ToyEngine()
    engine.aside = "prefix caching is off"
    with caplog.at_level(logging.INFO, "peek"):
        toy_attachment(engine)
        toy_attachment(engine, policy="fcfs+lru")
    first, second = lines(caplog)
    assert first.startswith("peek: stands aside, stock order: prefix caching is off; toy 1.0")
    assert second.startswith("peek: not active, not configured")


def test_an_engine_that_does_not_say_who_it_is_is_served() -> None:
    settings = Settings(PeekConfig())
    beside: Attachment[object] = Attachment(settings, lambda: "why", lambda shield: None, lambda: 1 / 0)  # type: ignore[type-var,arg-type,return-value]
    assert beside.about == EngineInfo("engine", ranks=0)
    assert beside.shield.active


VLLM_LIKE = """
import logging
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("[ENGINE] %(levelname)s %(message)s"))
engine = logging.getLogger("vllm")
engine.addHandler(handler)
engine.setLevel(logging.{level})
engine.propagate = False
{before}
from peek.adapters.lifecycle import forward_log
for _ in range(2):
    forward_log("vllm")
logging.getLogger("peek").info("peek: active")
logging.getLogger("peek").warning("peek: careful")
"""

SGLANG_LIKE = """
import logging
logging.basicConfig(level=logging.INFO, format="[ROOT] %(message)s", force=True)
logging.getLogger("peek").info("peek: active")
"""


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        (
            VLLM_LIKE.format(level="INFO", before=""),
            ["[ENGINE] INFO peek: active", "[ENGINE] WARNING peek: careful"],
        ),
        (VLLM_LIKE.format(level="ERROR", before=""), []),
        (
            VLLM_LIKE.format(level="INFO", before="logging.basicConfig(format='[ROOT] %(message)s')"),
            ["[ROOT] peek: active", "[ROOT] peek: careful"],
        ),
        (SGLANG_LIKE, ["[ROOT] peek: active"]),
    ],
    ids=["as vLLM does", "quiet", "with a root handler", "as SGLang does"],
)
def test_lines_are_seen_once(script: str, shown: list[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stderr.splitlines() == shown


# -- who the engine is --------------------------------------------------------------------------------------


def test_a_vllm_scheduler() -> None:
    spec = type("FullAttentionSpec", (), {})()
    scheduler = SimpleNamespace(
        kv_cache_config=SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)]), block_size=32
    )
    config = SimpleNamespace(
        model_config=SimpleNamespace(served_model_name=["m", "other"]),
        parallel_config=SimpleNamespace(data_parallel_index=3),
    )
    about = vllm_info(scheduler, config)
    assert (about.engine, about.model, about.dp_rank, about.speaks) == ("vllm", "m", 3, True)
    assert about.cache == "FullAttentionSpec in blocks of 32"
    assert vllm_info(object(), object()).model == ""


def scheduler_like(**facts: object) -> SimpleNamespace:
    return SimpleNamespace(server_args=SimpleNamespace(served_model_name="m", tp_size=2), **facts)


def policy_like() -> SimpleNamespace:
    cache = type("RadixCache", (), {"page_size": 16})()
    return SimpleNamespace(tree_cache=cache)


def test_an_sglang_policy_and_its_scheduler() -> None:
    about = sglang_info(policy_like(), scheduler_like(dp_rank=1, tp_rank=1, attn_tp_rank=1))
    assert (about.model, about.dp_rank, about.tp_rank, about.speaks) == ("m", 1, 1, False)
    assert about.cache == "RadixCache in pages of 16"
    ranks = SimpleNamespace(dp_rank=None, attn_dp_rank=4, tp_rank=0)
    later = sglang_info(policy_like(), scheduler_like(ps=ranks))
    assert (later.dp_rank, later.tp_rank, later.speaks) == (4, 0, True)
    for other in ("attn_cp_rank", "pp_rank"):  # it has the same requests, and would write the same trace
        assert not sglang_info(policy_like(), scheduler_like(**{other: 1})).speaks


def test_an_sglang_policy_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unset:
        @property
        def tp_rank(self) -> int:
            raise RuntimeError("not published")

    module = SimpleNamespace(get_parallel=Unset)
    for name in ("sglang", "sglang.srt", "sglang.srt.runtime_context"):
        monkeypatch.setitem(sys.modules, name, module)
    about = sglang_info(policy_like(), None)
    assert (about.model, about.tp_rank, about.speaks) == ("", 0, True)


@pytest.mark.parametrize(
    ("arguments", "ranks"),
    [
        ({}, 1),
        ({"tp_size": 2}, 2),
        ({"tp_size": 2, "pp_size": 3}, 6),
        ({"tp_size": 8, "dp_size": 4, "enable_dp_attention": True}, 2),
        ({"tp_size": 2, "dp_size": 4, "enable_dp_attention": False}, 2),
    ],
)
def test_how_many_schedule_one_queue(arguments: dict[str, object], ranks: int) -> None:
    assert ranks_of_one_queue(SimpleNamespace(**arguments)) == ranks
    assert ranks_of_one_queue(None) == 0


class Running:
    """A request that an engine computes."""

    def __init__(self) -> None:
        self.output: list[int] = []
        self.ended = False

    def is_finished(self) -> bool:
        return self.ended


def test_what_is_generated_is_charged_once_there_are_two_tenants() -> None:
    charged: list[tuple[str, int]] = []
    answers: list[tuple[int, str]] = []
    generated = Generated(
        lambda tenant, tokens: charged.append((tenant, tokens)),
        lambda tokens, request_id: answers.append((tokens, request_id)),
        lambda request: request.output,
    )
    one, other = Running(), Running()
    generated.seen("a")
    generated.runs(one, "r1", "a")
    one.output += [7] * 3
    generated.count()
    assert charged == [], "nobody to take turns with"
    generated.seen("b")
    generated.runs(other, "r2", "b")
    one.output += [7] * 2
    other.output += [7] * 4
    generated.count()
    assert charged == [("a", 2), ("b", 4)]
    one.ended = True
    one.output.append(7)
    generated.count()
    generated.count()
    assert charged == [("a", 2), ("b", 4), ("a", 1)]
    assert answers == [(6, "r1")]


@pytest.mark.parametrize(("admitted", "lasts"), [(64, 1), (64, 4), (200, 1), (3, 100)])
def test_however_many_are_admitted_answers_are_told_soon_and_nothing_piles_up(
    admitted: int, lasts: int
) -> None:
    """So many are admitted in each step, and run for so many: one, as of embeddings."""
    told: dict[str, int] = {}
    step = 0
    generated = Generated(
        lambda *_: None, lambda _, name: told.update({name: step}), lambda each: each.output
    )
    going: dict[str, Running] = {}
    for step in range(300):
        for place in range(admitted):
            name = f"{step} {place}"
            going[name] = Running()
            generated.runs(going[name], name, "a")
            gone = going.pop(f"{step - lasts} {place}", None)
            if gone is not None:
                gone.ended = True
        generated.count()
        assert len(generated._running) <= 2 * len(going) + LOOKS
    assert len(told) > 150 * admitted
    assert max(when - lasts - int(name.split()[0]) for name, when in told.items()) <= lasts + 1
