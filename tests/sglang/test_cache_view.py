"""SGLang's prefix caches through `peek.testing.check_cache_view`: the view against `match_prefix`."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest
from sglang_lab import CORES, MatchPrefixParams, RadixKey, World, make_world, tokens_for, torch
from sglang_small import settings_of

from peek.adapters.sglang import plugin
from peek.adapters.sglang.caches import make_view
from peek.adapters.sglang.requests import Translator
from peek.adapters.symbols import namespace_of, owner_of
from peek.testing import check_cache_view
from peek.trie.keys import pack

PROMPTS = [[3, 4, 5, 6, 7, 8], [3, 4, 5, 9, 9], [3, 4], [3, 4, 11, 11, 11, 3], [12] * 8]
ABSENT = [20, 21]
NAMESPACES = (namespace_of(None, None), namespace_of("lora", None))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("page", [1, 4])
def test_the_view_answers_as_match_prefix_does(core: str | None, page: int) -> None:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    world = make_world(200_000, page_size=page, core=core)
    for namespace in NAMESPACES:
        for prompt in PROMPTS[:2] + PROMPTS[3:4]:
            tokens = [token for token in prompt for _ in range(page)]
            key = RadixKey(tokens_for(tokens), owner_of(namespace)[1])
            world.tree.insert(InsertParams(key=key, value=torch.arange(len(tokens), dtype=torch.int64)))
    door = Translator(page)
    pages = door.pages

    def symbols(prompt: list[int]) -> list[int]:
        if pages is None:
            return prompt
        tokens = [token for token in prompt for _ in range(page)]
        return memoryview(pages.intern(pack(tokens))).cast("i").tolist()

    def match(key: list[int], namespace: str) -> int:
        tokens = key
        if pages is not None:
            tokens = [token for symbol in key for token in memoryview(pages.page(symbol)).cast("i")]
        found = world.tree.match_prefix(
            MatchPrefixParams(key=RadixKey(tokens_for(tokens), owner_of(namespace)[1]))
        )
        length = getattr(found, "device_prefix_len", None)
        return len(found.device_indices) if length is None else int(length)

    check_cache_view(
        make_view(world.tree, door),
        match,
        prompts=[symbols(prompt) for prompt in PROMPTS],
        absent=symbols(ABSENT),
        namespaces=NAMESPACES,
    )


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("page", [1, 4])
def test_a_cursor_outlives_splits(core: str | None, page: int) -> None:
    """Others part ways with a prompt in front of a cursor, at it and behind it."""
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    def insert(pages: list[int]) -> None:
        tokens = [token for number in pages for token in [number] * page]
        value = torch.arange(len(tokens), dtype=torch.int64)
        world.tree.insert(InsertParams(key=RadixKey(tokens_for(tokens)), value=value))

    for parted in ([10], [20], [20, 10], [10, 20], [35], [35, 20, 5]):
        world = make_world(200_000, page_size=page, core=core)
        prompt = list(range(100, 140))
        insert(prompt)
        door = Translator(page)
        packed = pack([token for number in prompt for token in [number] * page])
        key = memoryview(packed if door.pages is None else door.pages.intern(packed)).cast("i")
        view = make_view(world.tree, door)
        matched, cursor = view.advance(view.root(""), key[:20], 0)
        assert matched == 20
        for at in parted:
            insert([*prompt[:at], 900 + at])
        assert view.advance(cursor, key[20:], 20)[0] == 20


def insert(world: World, tokens: list[int]) -> None:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams

    value = torch.arange(len(tokens), dtype=torch.int64)
    world.tree.insert(InsertParams(key=RadixKey(tokens_for(tokens)), value=value))


@pytest.mark.parametrize("core", CORES)
def test_what_comes_in_is_told_by_the_hook_around_insert(core: str | None) -> None:
    """`sglang_small` puts it there as the plug-in does.  A class with its own `insert` is asked anew."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    world = make_world(1000, core=core)
    view = make_view(world.tree, Translator(1))
    assert view.version is None, "nobody has told of anything yet"
    insert(world, [3, 4, 5])
    first = view.version
    assert first is not None
    insert(world, [3, 4, 6])
    assert view.version != first
    assert view.keeps_since(first)
    world.tree.evict(EvictParams(num_tokens=1))
    assert not view.keeps_since(first)

    class Own(type(world.tree)):  # type: ignore[misc]
        def insert(self, params: object) -> object:
            return super().insert(params)

    world.tree.__class__ = Own
    other = make_view(world.tree, Translator(1))
    insert(world, [7])
    assert other.version is None
    assert other.keeps_since(first) is False
    assert other.inserted_since(first) is None


def test_every_hook_finds_its_method() -> None:
    targets = [target for target, _, _ in plugin.hooks(settings_of("peek"))]
    assert len(targets) >= 4
    assert plugin.INSERTS[0] in targets
    assert all(callable(resolve_name(target)) for target in targets)
    kinds = {type(make_world(100, core=core).tree) for core in CORES}
    assert {f"{kind.__module__}.{kind.__name__}.insert" for kind in kinds} <= set(targets)
