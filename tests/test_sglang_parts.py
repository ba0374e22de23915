"""The parts of the SGLang adapter that need no SGLang: namespaces as strings."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from functools import partial, partialmethod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek.adapters.engine_adapter import Stated, Statements
from peek.adapters.sglang import __all__ as public
from peek.adapters.sglang.caches import MOST_TOKENS, Insertions
from peek.adapters.sglang.plugin import around_insert
from peek.adapters.sglang.requests import Translator, stated_by
from peek.adapters.symbols import ALONE, FIRST_LETTER, Alphabet, namespace_of, owner_of
from peek.errors import InvalidKey
from peek.trie.keys import pack

NAMES = st.one_of(st.none(), st.text(max_size=6), st.sampled_from(["null", "[", '",', "\ud800"]))


FIRST = st.none() | st.integers(0, 2**62)


@given(one=st.tuples(NAMES, NAMES, FIRST), other=st.tuples(NAMES, NAMES, FIRST))
def test_namespaces_come_back_and_do_not_mix(
    one: tuple[str | None, str | None, int | None], other: tuple[str | None, str | None, int | None]
) -> None:
    namespace = namespace_of(*one)
    extra, salt, first = one
    assert owner_of(namespace) == (first, extra, salt or None)  # an empty salt is none
    assert not namespace.startswith(ALONE)
    assert (namespace_of(*other) == namespace) == (owner_of(namespace_of(*other)) == owner_of(namespace))
    assert (namespace == "") == (owner_of(namespace) == (None, None, None))


WIDE = st.integers(0, 9) | st.sampled_from([FIRST_LETTER - 1, FIRST_LETTER, 2**40, 2**62])


@given(tokens=st.lists(WIDE, min_size=1, max_size=9), start=st.integers(0, 8), stop=st.integers(0, 9))
def test_a_part_of_a_prompt_is_packed_as_if_it_were_cut_out(tokens: list[int], start: int, stop: int) -> None:
    alphabet = Alphabet()
    kept = alphabet.pack(tokens[::-1])[1]
    for held in (tokens, array("q", tokens), np.array(tokens)):
        behind = b"".join(alphabet.pack([token])[0] for token in tokens[start:])
        assert alphabet.known(held, start) == behind
        if tokens[start:stop]:
            packed, letters = alphabet.pack(held, start, stop)
            assert packed == alphabet.pack(tokens[start:stop])[0] == alphabet.known(tokens[start:stop])
            assert set(letters) <= set(kept)
        else:
            with pytest.raises(InvalidKey):
                alphabet.pack(held, start, stop)
    assert Alphabet().known(array("q", [7, 2**40, 8])) == pack([7])


def leaves_sglang_alone(code: str) -> bool:
    """Whether `code` imports nothing of SGLang, in a process of its own: this one may have met its name."""
    check = f"import sys; {code}; sys.exit('sglang' in sys.modules)"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PEEK_")}
    return subprocess.run([sys.executable, "-c", check], env=environ, check=False).returncode == 0


def test_importing_the_package_does_not_import_sglang() -> None:
    assert public == ["Engine", "register"]
    assert leaves_sglang_alone("import peek.adapters.sglang")


def test_not_configured_registers_nothing() -> None:
    assert leaves_sglang_alone("import peek.adapters.sglang as adapter; adapter.register()")
    assert not leaves_sglang_alone("sys.modules['sglang'] = sys")


class Door:
    def known(self, tokens: list[int], extra_key: str | None, salt: str | None) -> tuple[str, bytes]:
        return (extra_key or "", pack(tokens))


class Cache:
    """A cache whose class has the hook, and that may fail."""

    peek: Any = None

    def __init__(self) -> None:
        self.keys: list[list[int]] = []

    def stock_insert(self, params: SimpleNamespace) -> int:
        if not params.key.token_ids:
            raise ValueError("nothing to insert")
        self.keys.append(params.key.token_ids)
        return len(self.keys)

    insert = partialmethod(partial(around_insert, stock_insert))


def inserted(tokens: list[int]) -> SimpleNamespace:
    return SimpleNamespace(key=SimpleNamespace(token_ids=tokens, extra_key=None, cache_salt=None))


def insertions_of(cache: Cache) -> Insertions:
    return Insertions(cache, Door(), lambda: len(cache.keys))  # type: ignore[arg-type]


def test_insertions_are_told_from_any_point_that_was_asked_before() -> None:
    cache: Any = Cache()
    assert cache.insert(inserted([8])) == 1, "nobody asks"
    insertions = insertions_of(cache)
    assert insertions.version is None, "the hook may not be there"
    assert [cache.insert(inserted([i])) for i in range(2)] == [2, 3]
    assert cache.insert(params=inserted([2])) == 4
    assert insertions.since(1) == [("", pack([1])), ("", pack([2]))]
    assert insertions.since(3) == []
    assert insertions.version is not None
    count, gone = insertions.version
    del cache.keys[0]
    assert insertions.version == (count, gone + 1)
    assert insertions.since(1) is None, "forgotten: nobody asks for it again"
    cache.peek = None
    cache.insert(inserted([9]))
    assert (insertions.count, len(cache.keys)) == (3, 4)


def test_an_insertion_that_fails_is_told_and_fails() -> None:
    cache: Any = Cache()
    insertions = insertions_of(cache)
    with pytest.raises(ValueError, match="nothing to insert"):
        cache.insert(inserted([]))
    assert insertions.count == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_of_ours_lets_the_insertion_go_on(when: str, caplog: pytest.LogCaptureFixture) -> None:
    cache: Any = Cache()
    insertions = insertions_of(cache)
    cache.insert(inserted([1]))
    sizes = iter([1] if when == "after" else [])
    insertions._size = lambda: next(sizes)
    assert cache.insert(inserted([2])) == 2
    assert (cache.peek, insertions.version) == (None, None), "each walk asks anew"
    assert cache.insert(inserted([3])) == 3
    assert [record.message for record in caplog.records] == [
        "peek is not told of insertions any more; each plan asks SGLang's cache anew"
    ]


def test_insertions_that_nobody_asks_for_are_forgotten() -> None:
    cache: Any = Cache()
    insertions = insertions_of(cache)
    long = [7] * (MOST_TOKENS // 4)
    for _ in range(6):
        cache.insert(inserted(long))
    assert insertions.since(0) is None
    assert insertions.since(4) is not None
    assert len(insertions.since(5) or ()) == 1


def test_of_short_insertions_fewer_are_remembered_than_their_tokens_allow() -> None:
    """A server that is asked one short thing after another never plans."""
    cache: Any = Cache()
    insertions = insertions_of(cache)
    for i in range(MOST_TOKENS // 50):
        cache.insert(inserted([i]))
    assert len(insertions._keys) < MOST_TOKENS // 64


def asks(custom_params: object = None, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(sampling_params=SimpleNamespace(custom_params=custom_params), **more)


OWN = SimpleNamespace(session_id="own")
BOTH = {"peek_session": "named", "peek_ttft_target_s": "2.5"}


@pytest.mark.parametrize(
    ("request_of", "stated"),
    [
        (asks(BOTH, session=OWN, routing_key="key"), Stated("named", 2.5)),
        (asks({"peek_session": []}, session=OWN, routing_key="key"), Stated("own")),
        (
            asks({"peek_ttft_target_s": 1}, session=OWN, session_id=None, routing_key="key"),
            Stated("own", 1.0),
        ),
        (asks(None, session=None, session_id="id", routing_key="key"), Stated("id")),  # 0.5.9
        (asks(None, session=None, session_id=None, routing_key="key"), Stated("key")),
        (asks({"__req__": None}, session=None, routing_key=None), Stated()),
        (asks(), Stated()),
    ],
)
def test_a_session_is_named_or_sglangs_own_or_the_routing_key(
    request_of: SimpleNamespace, stated: Stated
) -> None:
    assert stated_by(request_of, "none", Statements()) == stated


class Request(SimpleNamespace):
    """As much of SGLang's as is translated; it can be referred to weakly."""

    def __init__(self, rid: str, tokens: list[int]) -> None:
        super().__init__(
            rid=rid, origin_input_ids=tokens, output_ids=[], extra_key=None, return_logprob=False
        )


def test_a_session_is_inferred_only_where_none_is_stated() -> None:
    door = Translator(1)
    turns = [Request(str(length), list(range(length))) for length in (200, 300, 400)]
    assert [door.translate(turn, "named").session for turn in turns] == ["named"] * 3
    assert len(door.continuations) == 0
    assert [door.translate(turn).session for turn in turns] == ["~200"] * 3
    assert door.translate(Request("short", [7]), "named").session == "named"


def test_a_routing_key_that_names_the_tenant_is_no_session() -> None:
    sent = asks(None, session=None, routing_key="team")
    told = [stated_by(sent, tenants, Statements()).session for tenants in ("none", "namespace", "named")]
    assert told == ["team", "team", ""]
    assert stated_by(asks(BOTH, routing_key="team"), "named", Statements()) == Stated("named", 2.5)
