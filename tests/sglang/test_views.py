"""The dual-walk over SGLang's prefix cache against its own `match_prefix`, request by request."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_hybrid import eagle_world, insert_pairs
from sglang_lab import (
    CORES,
    MatchPrefixParams,
    RadixKey,
    World,
    key_of,
    make_request,
    make_world,
    tokens_for,
    torch,
)
from sglang_small import attach
from sglang_tree import nodes, snapshot

from peek.adapters.symbols import FIRST_LETTER

STATES = 300
WIDE = [FIRST_LETTER, 2**31 - 1, 2**31, 2**62 - 1]
Text: TypeAlias = tuple[str | None, list[int]]


@st.composite
def texts(draw: st.DrawFn, page: int) -> Text:
    """A namespace and a prompt of a few pieces that others have too, cut at any token."""
    rnd = random.Random(draw(st.integers(0, 6)))
    tokens: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        tokens += [rnd.randrange(draw(st.integers(2, 3))) + 3] * draw(st.sampled_from([1, 3, page, 2 * page]))
    return draw(st.sampled_from([None, "lora"])), tokens


def insert(world: World, namespace: str | None, tokens: list[int]) -> None:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    whole = len(tokens) // world.page_size * world.page_size
    key = RadixKey(tokens_for(tokens[:whole]), namespace)
    if whole:
        world.tree.insert(InsertParams(key=key, value=torch.arange(whole, dtype=torch.int64)))


def stock_answer(world: World, request: Any) -> int:
    """`match_prefix` of what the engine would look up: all but the last token."""
    key = key_of(request)
    key = key[: len(key) - 1]
    if not len(key):
        return 0
    result = world.tree.match_prefix(MatchPrefixParams(key=key))
    length = getattr(result, "device_prefix_len", None)
    return len(result.device_indices) if length is None else int(length)


def compare(world: World, adapter: Any, prompts: list[Text], seen: Counter[str]) -> None:
    """A walk of the cache, which stays as it is, against SGLang's own answers."""
    requests = [make_request(f"r{i}", tokens, extra_key=space) for i, (space, tokens) in enumerate(prompts)]
    before = snapshot(world)
    adapter.order(list(requests))
    assert snapshot(world) == before
    for request in requests:
        truth = stock_answer(world, request)
        assert int(adapter.planner.tree.request(request.rid).cached_len) == truth, request.rid
        seen["cached" if truth else "cold"] += 1


def runs(ids: list[int], lengths: list[int]) -> Any:
    run = st.tuples(st.sampled_from(ids), st.sampled_from(lengths))
    return st.lists(run, min_size=1, max_size=4).map(lambda found: [v for v, n in found for _ in range(n)])


@pytest.mark.parametrize(("core", "page"), [(core, page) for core in CORES for page in (1, 4, 16, 64)])
@pytest.mark.parametrize("kind", ["plain", "wide", "pairs"])
def test_the_walk_equals_match_prefix(kind: str, core: str | None, page: int) -> None:
    """Of usual tokens in namespaces, of tokens wider than a symbol, of the pairs of EAGLE."""
    if (kind, page) in (("plain", 4), ("plain", 16), ("wide", 4), ("wide", 64), ("pairs", 16), ("pairs", 64)):
        pytest.skip("one size in between and a large one are enough")
    lengths = [1, 2, page, 2 * page]
    other = {"wide": runs([7, 8, *WIDE], lengths), "pairs": runs([3, 4, 2**40], lengths)}.get(kind)
    several = texts(page) if other is None else st.tuples(st.none(), other)
    seen: Counter[str] = Counter()

    @settings(max_examples=STATES if kind == "plain" else 100)
    @given(
        cached=st.lists(several, max_size=6),
        queue=st.lists(several, min_size=2, max_size=8),
        later=st.lists(several, max_size=3),
    )
    def state(cached: list[Text], queue: list[Text], later: list[Text]) -> None:
        pairs = kind == "pairs"
        world = eagle_world(page, core) if pairs else make_world(200_000, page_size=page, core=core)
        adapter = attach(world, "lpm-nolimit+lru").adapter
        for more in (cached, [], later):  # a second walk, and one of a cache that has changed
            for namespace, tokens in more:
                insert_pairs(world, tokens) if pairs else insert(world, namespace, tokens)
            compare(world, adapter, queue, seen)
        adapter.order([])
        assert len(adapter.planner) == 0
        assert adapter._door.pages is None or len(adapter._door.pages) == 0

    state()
    assert min(seen["cached"], seen["cold"]) > 50


@pytest.mark.parametrize("core", CORES)
def test_namespaces_do_not_mix(core: str | None) -> None:
    world = make_world(10_000, core=core)
    adapter = attach(world, "lpm-nolimit+lru").adapter
    insert(world, "lora", [5] * 100)
    requests = [
        make_request("same", [5] * 101, extra_key="lora"),
        make_request("none", [5] * 101),
        make_request("other", [5] * 101, extra_key="lorb"),
        make_request("salted", [5] * 101, extra_key="lora", cache_salt="s"),
        make_request("unsalted", [5] * 101, extra_key="lora", cache_salt=""),
    ]
    adapter.order(list(requests))
    cached = {r.rid: adapter.planner.tree.request(r.rid).cached_len for r in requests}
    assert cached == {"same": 100, "none": 0, "other": 0, "salted": 0, "unsalted": 100}
    assert cached == {request.rid: stock_answer(world, request) for request in requests}
    assert [adapter.planner.request(name).cluster_size for name in cached] == [2, 1, 1, 1, 2]


def to_host(node: Any) -> None:
    """Move a node's KV to the host, as the hierarchical caches leave it."""
    data = node.component_data[0] if hasattr(node, "component_data") else node
    data.host_value, data.value = data.value, None


@pytest.mark.parametrize("core", [core for core in CORES if core != "rust"])
def test_what_is_on_the_host_counts_at_its_share(core: str | None) -> None:
    world = make_world(10_000, core=core)
    world.tree.cache_controller = object()  # as a cache with a host has one; its nodes change unseen
    adapter = attach(world, "lpm-nolimit+lru").adapter
    insert(world, None, [5] * 60)
    insert(world, None, [*[5] * 60, *[6] * 40])
    requests = [make_request(f"r{i}", [*[5] * 60, *[6] * 40, 7 + i]) for i in range(2)]
    requests.append(make_request("first", [*[5] * 60, 9]))

    def cached() -> dict[str, int]:
        adapter.order(list(requests))
        return {r.rid: int(adapter.planner.tree.request(r.rid).cached_len) for r in requests}

    assert cached() == {"r0": 100, "r1": 100, "first": 60}
    upper, lower = [node for node in nodes(world) if len(node.key)]
    to_host(lower)
    assert cached() == {"r0": 60 + 20, "r1": 60 + 20, "first": 60}
    to_host(upper)
    assert cached() == {"r0": 50, "r1": 50, "first": 30}
    data = lower.component_data[0] if hasattr(lower, "component_data") else lower
    data.host_value = None  # gone from the host, too
    assert cached() == {"r0": 30, "r1": 30, "first": 30}
