"""Keys: every accepted form packs to the same bytes, every other form is refused by name.

The comparison functions are held against a symbol-by-symbol twin, at every offset and on both sides of
the length from which the library hands the work to `memcmp`.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek import InvalidKey, PeekError
from peek.adapters.symbols import FIRST_LETTER, Alphabet
from peek.testing.twins import common_length
from peek.trie import keys
from peek.trie.keys import MAX_SYMBOL, PageTable, match_edge, match_span, pack, symbol_at, unpack

SYMBOLS = st.integers(0, MAX_SYMBOL)
EDGE_SYMBOLS = [0, 1, 255, 256, 2**15 - 1, 2**16, 2**24, MAX_SYMBOL]


def packed_by_hand(symbols: list[int]) -> bytes:
    return b"".join(symbol.to_bytes(4, "little") for symbol in symbols)


# -- what is accepted ---------------------------------------------------------------------------------

FORMS = {
    "list": list,
    "tuple": tuple,
    "bytes": packed_by_hand,
    "bytearray": lambda symbols: bytearray(packed_by_hand(symbols)),
    "list of numpy ints": lambda symbols: list(np.array(symbols, np.int64)),
    "array i": lambda symbols: array("i", symbols),
    "array l": lambda symbols: array("l", symbols),
    "array q": lambda symbols: array("q", symbols),
    "array I": lambda symbols: array("I", symbols),
    "numpy int32": lambda symbols: np.array(symbols, np.int32),
    "numpy int64": lambda symbols: np.array(symbols, np.int64),
    "numpy uint64": lambda symbols: np.array(symbols, np.uint64),
    "numpy slice without gaps": lambda symbols: np.array([9, *symbols, 9], np.int64)[1:-1],
    "numpy read-only": lambda symbols: np.frombuffer(packed_by_hand(symbols), np.int32),
    "int32 memoryview": lambda symbols: memoryview(packed_by_hand(symbols)).cast("i"),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@given(symbols=st.lists(SYMBOLS | st.sampled_from(EDGE_SYMBOLS), min_size=1, max_size=40))
def test_every_form_packs_to_the_same_bytes(form, symbols: list[int]) -> None:
    packed = pack(form(symbols))
    assert type(packed) is bytes
    assert packed == packed_by_hand(symbols)
    assert unpack(packed) == symbols


@pytest.mark.parametrize("code", "hH")
def test_short_arrays_are_widened(code: str) -> None:
    assert pack(array(code, [0, 7, 2**15 - 1])) == packed_by_hand([0, 7, 2**15 - 1])


def test_array_of_a_signed_integer_type_includes_the_narrowest() -> None:
    assert pack(array("b", [0, 7, 127])) == packed_by_hand([0, 7, 127])


def test_bytes_are_taken_over_without_a_copy() -> None:
    key = packed_by_hand([1, 2, 3])
    assert pack(key) is key


def test_a_mutable_source_is_copied() -> None:
    source = bytearray(packed_by_hand([1, 2]))
    vector = np.array([1, 2], np.int32)
    packed = pack(source), pack(vector)
    source[0] = 99
    vector[0] = 99
    assert packed == (packed_by_hand([1, 2]),) * 2


def test_bools_are_ints() -> None:
    assert pack([True, False, 5]) == packed_by_hand([1, 0, 5])


def test_symbols_packed_as_int32_are_taken_as_they_are() -> None:
    assert unpack(pack(array("i", [3, -1]))) == [3, -1]
    assert unpack(pack(np.array([3, -1], np.int32))) == [3, -1]
    assert unpack(pack(struct.pack("<2i", 3, -1))) == [3, -1]


# -- what is refused ----------------------------------------------------------------------------------

NOT_SEQUENCES = [
    ("12", "key is a str"),
    ({1: 2}, "key is a dict"),
    ({1, 2}, "key is a set"),
    (None, "key is a NoneType"),
    (12, "key is an int"),
    (1.5, "key is a float"),
    (range(3), "key is a range"),
    (iter([1, 2]), "key is a list_iterator"),
    (object(), "key is an object"),
]

BAD_SYMBOLS = [
    ([-1], "symbol 0 is -1,"),
    ([5, 6, -7, -8], "symbol 2 is -7,"),
    ([5, 2**31], "symbol 1 is 2147483648,"),
    ([5, -(2**31) - 1], "symbol 1 is -2147483649,"),
    ([2**70], "symbol 0 is 1180591620717411303424,"),
    ((1, -2), "symbol 1 is -2,"),
    ([1, 2.0], "symbol 1 is 2.0, a float"),
    ([1, "7"], "symbol 1 is '7', a str"),
    ([1, None, -1], "symbol 1 is None, a NoneType"),
    ([1, [2]], r"symbol 1 is \[2\], a list"),
    ([1, b"x"], "symbol 1 is b'x', a bytes"),
    (array("h", [1, -2]), "symbol 1 is -2,"),
    (array("q", [1, 2, 2**31]), "symbol 2 is 2147483648,"),
    (np.array([1, -2]), "symbol 1 is -2,"),
    (np.array([2**40, 1]), "symbol 0 is 1099511627776,"),
    (np.array([1, 2**63], np.uint64), "symbol 1 is 9223372036854775808,"),
]

BAD_SHAPES = [
    ([], "empty key: a request needs a symbol; one of its own if it fills no page or block"),
    ((), "empty key"),
    (b"", "empty key"),
    (bytearray(), "empty key"),
    (array("i"), "empty key"),
    (np.zeros(0, np.int64), "empty key"),
    (b"abc", "key of 3 bytes"),
    (b"abcde", "key of 5 bytes"),
    (bytearray(b"abcdef"), "key of 6 bytes"),
    (np.zeros((2, 2), np.int32), "key has 2 dimensions"),
    (np.zeros((1, 2), np.int64), "key has 2 dimensions"),
    (np.array(5), "key has 0 dimensions"),
    (np.arange(8)[::2], "gaps"),
    (np.arange(8, dtype=np.int32)[::-1], "gaps"),
    (np.array([1.0]), "buffer format 'd'"),
    (np.array([True]), r"buffer format '\?'"),
    (np.array([1], ">i4"), "buffer format '>i'"),
    (array("f", [1.0]), "buffer format 'f'"),
]


@pytest.mark.parametrize(("key", "says"), NOT_SEQUENCES + BAD_SYMBOLS + BAD_SHAPES)
def test_refusal_names_the_offender(key: object, says: str) -> None:
    with pytest.raises(InvalidKey, match=says):
        pack(key)


def test_refusal_is_a_value_error_and_a_peek_error() -> None:
    with pytest.raises(ValueError, match="empty key"):
        pack([])
    assert issubclass(InvalidKey, PeekError)


def test_the_offender_is_not_a_symbol_that_packs() -> None:
    with pytest.raises(InvalidKey, match="symbol 1 is -1"):
        pack([np.int64(5), -1])


class Index:
    """An integer by `__index__` alone."""

    def __index__(self) -> int:
        return 5


def test_an_integer_by_index_packs_as_numpy_ints_do() -> None:
    assert pack([Index(), 6]) == packed_by_hand([5, 6])


@given(symbols=st.lists(SYMBOLS, min_size=1, max_size=80), data=st.data())
def test_the_first_of_several_offenders_is_named(symbols: list[int], data: st.DataObject) -> None:
    offenders = st.sampled_from([-1, 2**31, -(2**63), 2**64, 0.5, None, "x"])
    at = data.draw(st.integers(0, len(symbols)))
    bad = data.draw(offenders)
    symbols[at:at] = [bad, data.draw(offenders)]
    with pytest.raises(InvalidKey) as caught:
        pack(symbols)
    assert str(caught.value).startswith(f"symbol {at} is {bad!r},")


# -- comparing ----------------------------------------------------------------------------------------


def common_bytes(a: bytes, a_at: int, b: bytes, b_at: int) -> int:
    return 4 * common_length(unpack(a[a_at:]), unpack(b[b_at:]))


@st.composite
def related(draw: st.DrawFn) -> tuple[bytes, bytes, int, int]:
    """Two packed keys and an offset into each, with a long common part behind the offsets."""
    length = draw(st.integers(0, 200) | st.integers(60, 68))  # 256 bytes are 64 symbols
    shared = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
    keys, offsets = [], []
    for _ in range(2):
        before = draw(st.lists(st.integers(0, 1), max_size=9))
        after = draw(st.lists(st.sampled_from([0, 1, 2**16, 2**24, MAX_SYMBOL]), max_size=40))
        keys.append(pack([*before, *shared, *after, 7]))
        offsets.append(4 * len(before))
    return keys[0], keys[1], offsets[0], offsets[1]


@given(related())
def test_match_edge_is_the_common_prefix(drawn: tuple[bytes, bytes, int, int]) -> None:
    a, packed, a_at, at = drawn
    edge = a[a_at:]
    assert match_edge(edge, packed, at) == common_bytes(edge, 0, packed, at)


@given(related(), st.integers(0, 12), st.integers(0, 12))
def test_match_span_is_the_common_prefix(drawn: tuple[bytes, bytes, int, int], skip: int, shift: int) -> None:
    a, b, a_at, b_at = drawn
    for a_from, b_from in [(a_at, b_at), (0, b_at), (a_at, 0), (a_at + 4 * skip, b_at + 4 * shift)]:
        if a_from <= len(a) and b_from <= len(b):
            assert match_span(a, a_from, b, b_from) == common_bytes(a, a_from, b, b_from)
            assert match_span(b, b_from, a, a_from) == common_bytes(a, a_from, b, b_from)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 63, 64, 65, 66, 100])
def test_one_difference_is_found_wherever_it_is(length: int) -> None:
    base = [3] * length
    for position in range(length):
        for flipped in (2, 3 ^ 1 << 8, 3 ^ 1 << 16, 3 ^ 1 << 30):
            other = pack([*base[:position], flipped, *base[position + 1 :]])
            assert match_edge(pack(base), other, 0) == 4 * position
            assert match_span(pack(base), 0, other, 0) == 4 * position


@pytest.mark.parametrize("length", range(1, 70))
def test_edges_that_fit_whole_and_keys_that_end_early(length: int) -> None:
    edge = pack(list(range(length)))
    for lead in (0, 1, 5):
        ahead = pack([9] * 5)[: 4 * lead]
        assert match_edge(edge, ahead + edge, 4 * lead) == len(edge)
        assert match_edge(edge, ahead + edge + edge, 4 * lead) == len(edge)
        assert match_edge(edge, ahead + edge[:-4], 4 * lead) == len(edge) - 4
        assert match_edge(edge, ahead, 4 * lead) == 0


@given(st.lists(SYMBOLS | st.sampled_from(EDGE_SYMBOLS), min_size=1, max_size=200))
def test_symbol_at_reads_every_symbol(symbols: list[int]) -> None:
    packed = pack(symbols)
    assert [symbol_at(packed, 4 * i) for i in range(len(symbols))] == symbols


@pytest.mark.parametrize(("symbol", "read"), [(-1, 2**32 - 1), (-(2**31), 2**31), (MAX_SYMBOL, MAX_SYMBOL)])
def test_symbol_at_is_unsigned(symbol: int, read: int) -> None:
    assert symbol_at(struct.pack("<2i", 0, symbol), 4) == read


@pytest.mark.parametrize("bit", [0, 7, 30])
@pytest.mark.parametrize("length", [8, 9, 16, 40])
def test_a_single_bit_is_a_difference_wherever_it_is(length: int, bit: int) -> None:
    same = [0] * length
    for place in range(length):
        other = [*same[:place], 1 << bit, *same[place + 1 :]]
        for a, b in ((same, other), (other, same)):
            assert keys._common_native(pack(a), 0, pack(b), 0) == 4 * place


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=9), st.data())
def test_both_ways_to_compare_find_the_same(symbols: list[int], tail: list[int], data: st.DataObject) -> None:
    a = pack([3, *symbols])
    start = data.draw(st.integers(1, 1 + len(symbols)))
    b = pack([7, *symbols[: data.draw(st.integers(0, len(symbols)))], *tail])
    for at in (4, 4 + 4 * min(start, len(b) // 4 - 1)):
        by_words = keys._common_native(a, 4 * start, b, at)
        assert by_words == keys._common_slices(a, 4 * start, b, at)


@given(st.lists(st.lists(st.integers(0, 9) | st.integers(FIRST_LETTER, 2**62), min_size=1), max_size=6))
def test_wide_ids_are_spelled_again_and_their_symbols_used_again(prompts: list[list[int]]) -> None:
    alphabet = Alphabet()
    held = []
    for tokens in prompts:
        packed, letters = alphabet.pack(tokens)
        held.append(letters)
        assert [alphabet.value(symbol) for symbol in unpack(packed)] == tokens
        assert alphabet.known(tokens) == packed
        del letters
    wide = {token for tokens in prompts for token in tokens if token >= FIRST_LETTER}
    assert len(alphabet) == len(wide)
    held.clear()
    assert len(alphabet) == 0
    packed, kept = alphabet.pack([2**40])
    assert FIRST_LETTER <= unpack(packed)[0] < FIRST_LETTER + max(1, len(wide))
    assert len(kept) == 1


PAGE = 3
TEXTS = st.lists(st.integers(0, 1), min_size=PAGE, max_size=5 * PAGE).map(
    lambda tokens: tokens[: len(tokens) // PAGE * PAGE]
)


@given(texts=st.lists(TEXTS, max_size=12), order=st.randoms(use_true_random=False))
def test_equal_pages_have_equal_symbols(texts: list[list[int]], order: object) -> None:
    table = PageTable(PAGE)
    held: list[tuple[list[int], bytes]] = []
    for i, tokens in enumerate(texts):
        held.append((tokens, table.intern(pack(tokens))))
        if i % 3 == 2:
            order.shuffle(held)  # type: ignore[attr-defined]
            table.release(held.pop()[1])
        pages = Counter(
            (tuple(text[at : at + PAGE]), symbol)
            for text, symbols in held
            for at, symbol in zip(range(0, len(text), PAGE), unpack(symbols), strict=True)
        )
        assert len(pages) == len({page for page, _ in pages}) == len({symbol for _, symbol in pages})
        assert len(table) == len(pages)
        for page, symbol in pages:
            assert table.page(symbol) == pack(list(page))
    for _, symbols in held:
        table.release(symbols)
    assert len(table) == 0


def test_numbers_are_used_again() -> None:
    table = PageTable(PAGE)
    symbols = [unpack(table.intern(pack([i] * PAGE))) for i in range(3)]
    table.release(pack(symbols[1]))
    assert unpack(table.intern(pack([9] * PAGE))) == symbols[1]
