"""Keys of prompts: equal prefixes have equal symbols, and nothing else has."""

from __future__ import annotations

import re
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleets import common

from peek.errors import InvalidKey
from peek.fleet import openai_key, text_key, token_key
from peek.fleet.prompt_keys import BLOCK_BYTES, BLOCK_TOKENS, LONGEST_NAMESPACE
from peek.trie.keys import unpack

TEXTS = st.text(alphabet="ab\u00e9\n", max_size=300)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": TEXTS}),
    min_size=1,
    max_size=5,
)


def symbols(request: dict[str, Any]) -> list[int]:
    return unpack(openai_key(request).key)


@given(st.binary(max_size=400), st.binary(max_size=400), st.integers(0, 400))
def test_as_many_symbols_are_equal_as_whole_blocks(one: bytes, other: bytes, shared: int) -> None:
    other = one[:shared] + other
    mine, theirs = unpack(text_key(one).key), unpack(text_key(other).key)
    assert len(mine) == max(1, len(one) // BLOCK_BYTES)
    if min(len(one), len(other)) >= BLOCK_BYTES:
        equal = common(one, other) // BLOCK_BYTES
        assert common(mine, theirs) == equal
        assert not set(mine[equal:]) & set(theirs[equal:])  # a symbol stands for all before it, too


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=200))
def test_tokens_in_any_form_have_the_same_key(tokens: list[int]) -> None:
    found = token_key(tokens, "lora")
    assert found == token_key(array("i", tokens), "lora") == token_key(array("i", tokens).tobytes(), "lora")
    assert found.namespace == "lora"
    assert found.num_tokens == max(len(tokens), BLOCK_TOKENS)
    for name in ("prompt", "input"):
        assert openai_key({name: tokens})[:2] == found[:2] == openai_key({name: [tokens]})[:2]
    assert openai_key({"prompt_token_ids": tokens, "prompt": "other"})[:2] == found[:2]


@given(MESSAGES, MESSAGES)
def test_a_longer_conversation_begins_as_the_shorter_one(first: list[Any], more: list[Any]) -> None:
    short, long = {"messages": first}, {"messages": first + more}
    if (
        len(symbols(short)) > 1
        or len("".join(turn["content"].encode().decode() for turn in first)) > BLOCK_BYTES
    ):
        assert symbols(long)[: len(symbols(short))] == symbols(short)


@pytest.mark.parametrize("name", ["system", "instructions"])
def test_a_system_prompt_may_be_a_field(name: str) -> None:
    """Anthropic's requests and responses: different ones share nothing, equal ones do."""
    messages = [{"role": "user", "content": "u" * 200}]
    keys = [symbols({"messages": messages, name: letter * 640}) for letter in "aab"]
    blocks = symbols({"messages": messages, name: [{"type": "text", "text": "a" * 640}]})
    assert keys[0] == keys[1] == blocks
    assert common(keys[0], keys[2]) == 0


def test_the_order_is_system_then_tools_then_the_rest() -> None:
    system, user = {"role": "system", "content": "s" * 640}, {"role": "user", "content": "u" * 640}
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 640}}]
    plain = symbols({"messages": [system, user]})
    with_tools = symbols({"messages": [system, user], "tools": tools})
    assert common(plain, with_tools) == 10
    assert common(with_tools, symbols({"messages": [system, {**user, "content": "v"}], "tools": tools})) >= 20
    assert common(with_tools, symbols({"messages": [user], "tools": tools})) == 0


def test_fields_in_any_order_and_parts_of_a_content() -> None:
    tools = [{"a": 1, "b": {"c": 2, "d": 3}}]
    turned = [{"b": {"d": 3, "c": 2}, "a": 1}]
    messages = [{"role": "user", "content": "x" * 200}]
    parts = [{"content": [{"type": "text", "text": "x" * 200}], "role": "user"}]
    assert openai_key({"messages": messages, "tools": tools}) == openai_key(
        {"tools": turned, "messages": parts}
    )
    pictures = [
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, "what" * 99]}]
        for url in "ab"
    ]
    assert common(*[symbols({"messages": each}) for each in pictures]) == 0
    assert symbols({"input": "y" * 300}) == symbols({"messages": "y" * 300})
    assert symbols({"input": "y" * 300, "messages": None}) == symbols({"input": "y" * 300})


def test_what_anthropics_tools_are_told_and_say_counts_as_text() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "write", "input": {"text": "w" * 640}}
    said = {"type": "tool_result", "tool_use_id": "t1", "content": "r" * 6400}
    in_parts = {**said, "content": [{"type": "text", "text": "r" * 6400}]}
    plain, *longer = [
        openai_key({"messages": [{"role": "user", "content": content}]})
        for content in ("x" * 7040, [use, said], [use, in_parts], [use, {**said, "content": "r" * 6300}])
    ]
    assert longer[0] == longer[1]
    marked = [{"role": "user", "content": [use, {**said, "cache_control": {"type": "ephemeral"}}]}]
    assert openai_key({"messages": marked}) == longer[0], "the mark moves on at each turn"
    assert 0 <= longer[0].num_tokens - plain.num_tokens <= 60
    assert common(unpack(longer[0].key), unpack(longer[2].key)) > 105
    picture = {**said, "content": [{"type": "image", "source": {"data": "A" * 100_000}}]}
    assert openai_key({"messages": [{"role": "user", "content": [picture]}]}).num_tokens < 100
    assert openai_key({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}).num_tokens < 100


def test_the_input_goes_behind_the_id_of_a_template() -> None:
    """In the Responses API a prompt is no text but names a stored template."""
    template, said = {"id": "pmpt_1", "variables": {"a": "b"}}, "y" * 640
    keys = [symbols({"prompt": each, "input": said}) for each in (template, template, {"id": "pmpt_2"})]
    assert keys[0] == keys[1]
    assert common(keys[0], keys[2]) == 0
    assert common(keys[0], symbols({"prompt": template, "input": said + "more"})) >= 10
    assert len(symbols({"prompt": template})) == 1


def test_model_lora_and_salt_are_namespaces() -> None:
    request = {"prompt": "p" * 100, "model": "m"}
    spaces = {
        openai_key({**request, **more}).namespace
        for more in [{}, {"model": "n"}, {"lora": "l"}, {"cache_salt": "s"}, {"model": "", "lora": "m"}]
    }
    assert len(spaces) == 5
    assert len({openai_key({**request, "model": model}).key for model in "mn"}) == 1


def test_a_long_salt_is_not_kept() -> None:
    """Any client can send one, and a router keeps the namespaces of thousands of prompts."""
    salts = ["s" * 100_000, "s" * 100_001, "\ud800" * 100_000]
    spaces = [openai_key({"model": "m", "prompt": "p", "cache_salt": salt}).namespace for salt in salts]
    assert len(set(spaces)) == 3
    assert max(map(len, spaces)) <= LONGEST_NAMESPACE
    assert openai_key({"model": "m" * LONGEST_NAMESPACE, "prompt": ""}).namespace == "m" * LONGEST_NAMESPACE


@pytest.mark.parametrize("body", [{}, {"model": "m"}, {"prompt": None}])
def test_a_request_without_a_prompt_is_refused(body: dict[str, Any]) -> None:
    told = f"a request with the fields {[*body]} has no prompt, messages or input"
    with pytest.raises(InvalidKey, match=re.escape(told)):
        openai_key(body)


def test_what_is_no_prompt_of_tokens() -> None:
    with pytest.raises(InvalidKey, match="empty key"):
        token_key([])
    with pytest.raises(InvalidKey, match="-1"):
        token_key([1, -1])
    assert len(symbols({"prompt": ""})) == len(symbols({"prompt": []})) == 1
    assert openai_key({"prompt": ["a" * 64, "b" * 64]}).num_tokens == 2 * BLOCK_TOKENS
