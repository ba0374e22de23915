"""hypothesis strategies for prompts, queues, caches, scenes and histories.

Prompts are joined from a few pieces.  So they share prefixes at several depths, part late, are prefixes of
each other or share nothing.  Some are in another namespace, some have tokens that fill no whole page.  The
lengths are around the thresholds of policies: 32 tokens of a head, 32 cached tokens.

Every public function returns a strategy; hypothesis is imported when one is called.  `InvalidConfig` for
queues of more than nine requests, which would not all have come by `NOW`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from peek.errors import InvalidConfig
from peek.testing.hypotheses import st
from peek.testing.scenes import NOW, Arrival, History, Scene, Step
from peek.testing.twins import Place

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

# Pieces of prompts: lengths around theta and tau, heads that differ only at their end.
PIECES: Final = ((1,), (2, 2), (3,) * 31, (3,) * 32, (3,) * 31 + (4,), (5,) * 40, (6,) * 33)
NAMESPACES: Final = ("", "", "", "lora")
_GAPS: Final = (0, 0, 1, 2, 7)
_CUTS: Final = (1, 31, 32, 33, 34, 63, 64, 65, 10_000)

# Examples are drawn as plain lists of small tuples and put together afterwards.  So a failing example can be
# made smaller by leaving entries out.  A draft has the symbols, the rest of the prompt, namespace and names.
# A cut has the number of the request whose prompt is cached (modulo the queue's length), and the cut's end.
_Draft = tuple[tuple[int, ...], str, str, tuple[str, str, float | None]]
_Cut = tuple[int, int]


def prompts() -> SearchStrategy[tuple[int, ...]]:
    """Keys of one to three pieces, in symbols."""
    return st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map(_joined)


def queues(min_size: int = 1, max_size: int = 8, unit: int = 1) -> SearchStrategy[tuple[Arrival, ...]]:
    """Requests `r0`, `r1`, ... in arrival order, the first at 0, all before `NOW`; `unit` tokens a symbol."""
    return _rows(min_size, max_size).map(partial(_queue, unit))


def caches(queue: Sequence[Arrival], max_size: int = 4) -> SearchStrategy[tuple[Place, ...]]:
    """Possible contents of a cache: prefixes of some prompts of `queue`, cut anywhere."""
    return _cuts(max_size).map(partial(_cached, queue))


def scenes(
    min_size: int = 1, max_size: int = 8, under_way: bool = False, one_namespace: bool = False
) -> SearchStrategy[Scene]:
    """Scenes: a queue, part of it cached, pages of 1 or 16 tokens.

    With `under_way` parts of prompts may also be under prefill.  With `one_namespace` all requests are in the
    namespace "".
    """
    rows, cuts, under = _rows(min_size, max_size, one_namespace), _cuts(4), _cuts(2 if under_way else 0)
    return st.builds(_scene, rows, cuts, under, st.sampled_from([1, 16]))


def histories(max_steps: int = 6) -> SearchStrategy[History]:
    """Steps of one engine: requests arrive, the first of the order are admitted, others are withdrawn.

    Some requests arrive with an earlier time than the one before, as after a preemption.  Between two steps
    the cache gains and loses anything.
    """
    drafts, cuts = _drafts(), _cuts(4)
    few = st.integers(0, 2)
    step = st.tuples(st.sampled_from(_GAPS), st.lists(st.tuples(drafts, few), max_size=3), cuts, few, few)
    return st.builds(_history, st.lists(step, min_size=1, max_size=max_steps), st.sampled_from([1, 16]))


# -- drawing ------------------------------------------------------------------------------------------


def _drafts(one_namespace: bool = False) -> SearchStrategy[_Draft]:
    left_out = st.sampled_from(["unknown", "nothing", "a part of a page", "50 tokens"])
    named = st.sampled_from([("", "", None), ("t1", "", None), ("t2", "s1", 0.5), ("", "s1", 90.0)])
    places = st.sampled_from(NAMESPACES[:1] if one_namespace else NAMESPACES)
    return st.tuples(prompts(), left_out, places, named)


def _rows(
    min_size: int, max_size: int, one_namespace: bool = False
) -> SearchStrategy[list[tuple[_Draft, int, int]]]:
    """For each request: its prompt, and the seconds and tokens of work until the next one comes."""
    drafts = _drafts(one_namespace)
    if max_size * max(_GAPS) >= NOW:
        raise InvalidConfig(f"max_size is {max_size}, more than {int(NOW) // max(_GAPS)}")
    row = st.tuples(drafts, st.sampled_from(_GAPS), st.sampled_from([0, 10, 100]))
    return st.lists(row, min_size=min_size, max_size=max_size)


def _cuts(max_size: int) -> SearchStrategy[list[_Cut]]:
    return st.lists(st.tuples(st.integers(0, 11), st.sampled_from(_CUTS)), max_size=max_size)


# -- putting together ---------------------------------------------------------------------------------


def _joined(parts: list[tuple[int, ...]]) -> tuple[int, ...]:
    return sum(parts, ())


def _arrival(draft: _Draft, serial: int, arrival_time: float, unit: int, work: int = 0) -> Arrival:
    symbols, left_out, namespace, named = draft
    tail = {"a part of a page": unit - 1, "50 tokens": 50}.get(left_out, 0)
    tokens = 0 if left_out == "unknown" else len(symbols) * unit + tail
    return Arrival(f"r{serial}", symbols, arrival_time, namespace, tokens, work, *named)


def _queue(unit: int, drawn: list[tuple[_Draft, int, int]]) -> tuple[Arrival, ...]:
    rows: list[Arrival] = []
    arrival = work = 0
    for serial, (draft, gap, done) in enumerate(drawn):
        rows.append(_arrival(draft, serial, float(arrival), unit, work))
        arrival += gap
        work += done
    return tuple(rows)


def _cached(queue: Sequence[Arrival], cuts: list[_Cut]) -> tuple[Place, ...]:
    chosen = [(queue[which % len(queue)], end) for which, end in cuts if queue]
    return tuple((row.namespace, row.symbols[:end]) for row, end in chosen)


def _scene(rows: list[tuple[_Draft, int, int]], cuts: list[_Cut], under: list[_Cut], unit: int) -> Scene:
    queue = _queue(unit, rows)
    return Scene(queue, _cached(queue, cuts), _cached(queue, under), unit)


def _history(drawn: list[tuple[int, list[tuple[_Draft, int]], list[_Cut], int, int]], unit: int) -> History:
    rows: list[Arrival] = []
    steps: list[Step] = []
    now = 0
    for gap, drafts, cuts, admitted, withdrawn in drawn:
        now += gap
        known = len(rows)
        for draft, back in drafts:
            rows.append(_arrival(draft, len(rows), float(now - back), unit))
        steps.append(Step(float(now), tuple(rows[known:]), _cached(rows, cuts), admitted, withdrawn))
    return History(tuple(steps), unit)
