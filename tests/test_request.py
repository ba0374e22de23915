"""`PendingRequest` as an object: what it takes, what it refuses, copies and pickles of it."""

from __future__ import annotations

import copy
import pickle
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peek import InvalidKey, PeekConfig, PendingRequest, PendingTree, Planner
from peek.trie.tree_view import TreeView

COPIES: dict[str, Callable[[PendingRequest], PendingRequest]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {n}": lambda r, n=n: pickle.loads(pickle.dumps(r, n)) for n in range(6)},
}
FIELDS = [
    "arrival_time", "arrival_work", "cached_len", "cluster_depth", "cluster_id", "cluster_size", "coming_len",
    "head", "heads", "key", "lane", "length", "namespace", "num_tokens", "request_id", "score", "section",
    "sequence", "session", "tail", "tenant", "ttft_target_s",
]  # fmt: skip


def fields(request: PendingRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in FIELDS}


def test_the_list_of_fields_is_whole() -> None:
    public = {name for name in dir(PendingRequest) if not name.startswith("_")}
    assert public == {*FIELDS, "placed"}  # of the planner, and no copy has it


@pytest.mark.parametrize("how", list(COPIES))
@given(data=st.data())
def test_a_copy_has_every_field(how: str, data: st.DataObject) -> None:
    request = PendingRequest(
        data.draw(st.text()),
        data.draw(st.sampled_from([None, b"1234", [1, 2], (3,), array("i", [4, 5])])),
        data.draw(st.floats(allow_nan=False, allow_infinity=False)),
        data.draw(st.text()),
        data.draw(st.integers(0, 2**40)),
        data.draw(st.integers(0, 2**40)),
        data.draw(st.text()),
        tuple(data.draw(st.lists(st.text(max_size=2), max_size=3))),
        data.draw(st.text()),
        data.draw(st.none() | st.floats(1e-3, 1e6)),
    )
    given = {
        "request_id", "key", "arrival_time", "namespace", "num_tokens", "tail", "tenant", "heads", "session",
        "ttft_target_s",
    }  # fmt: skip
    for name in set(FIELDS) - given:
        setattr(request, name, data.draw(st.integers(-(2**62), 2**62), label=name))
    twin = COPIES[how](request)
    assert twin is not request
    assert type(twin) is PendingRequest
    assert fields(twin) == fields(request)
    twin.cached_len = request.cached_len + 1
    assert fields(twin) != fields(request)


@pytest.mark.parametrize("how", list(COPIES))
def test_a_waiting_request_is_copied_with_its_signals(how: str) -> None:
    planner = Planner(PeekConfig.from_label("clpm+gm"))
    for name, key in {"a": [1, 2, 3], "b": [1, 2, 4]}.items():
        planner.add(PendingRequest(name, key, 1.0, "lora", 12, 3, "tenant-1"))
    planner.plan(TreeView(PendingTree()), 5.0)
    request = planner.tree.request("b")
    twin = COPIES[how](request)
    assert fields(twin) == fields(request)
    assert (twin.cluster_depth, twin.cluster_size, twin.length, twin.key) == (2, 2, 3, None)
    planner.tree.check()


@pytest.mark.parametrize("name", ["request_id", "arrival_time", "namespace", "tenant"])
def test_what_a_request_is_filed_under_stays(name: str) -> None:
    """Whoever changed it would lose the request, or leave a tenant behind that waits for ever."""
    request = PendingRequest("a", [1, 2], 0.0)
    with pytest.raises(AttributeError, match=name):
        setattr(request, name, getattr(request, name))


def test_the_key_of_a_deep_copy_is_its_own() -> None:
    request = PendingRequest("a", [1, 2], 0.0)
    shallow, deep = copy.copy(request), copy.deepcopy(request)
    assert shallow.key is request.key
    assert deep.key == request.key
    assert deep.key is not request.key


NUMBERS = [np.int8(7), np.uint16(7), np.int64(7), np.uint64(7), True + 6]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: type(n).__name__)
def test_numpy_numbers_are_numbers(number: Any) -> None:
    request = PendingRequest("a", [1], number, num_tokens=number, tail=number)
    assert [request.arrival_time, request.num_tokens, request.tail] == [7.0, 7, 7]
    kinds = [type(request.arrival_time), type(request.num_tokens), type(request.tail)]
    assert kinds == [float, int, int]


@pytest.mark.parametrize("seconds", [np.float32(1.5), np.float64(1.5)], ids=lambda s: type(s).__name__)
def test_numpy_seconds_are_seconds(seconds: Any) -> None:
    assert PendingRequest("a", [1], seconds).arrival_time == 1.5


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"request_id": 5}, "request_id is 5, an int; need a str"),
    ({"request_id": None}, "request_id is None"),
    ({"request_id": b"a"}, "request_id is b'a', a bytes"),
    ({"namespace": None}, "namespace is None, a NoneType"),
    ({"session": 7}, "session is 7, an int; need a str"),
    ({"ttft_target_s": 0}, "ttft_target_s of 'a' is 0; need more than 0"),
    ({"ttft_target_s": float("nan")}, "ttft_target_s of 'a' is nan, not a finite number"),
    ({"ttft_target_s": "2"}, "ttft_target_s of 'a' is '2', not a finite number"),
    ({"tenant": 7}, "tenant is 7, an int"),
    ({"num_tokens": -1}, "num_tokens of 'a' is -1, below 0"),
    ({"num_tokens": 1.0}, "num_tokens of 'a' is 1.0, a float; need a whole number"),
    ({"num_tokens": "5"}, "num_tokens of 'a' is '5', a str"),
    ({"num_tokens": None}, "num_tokens of 'a' is None"),
    ({"num_tokens": 2**63}, f"num_tokens of 'a' is {2**63}, beyond"),
    ({"num_tokens": 10**40}, "num_tokens of 'a' is 1000"),
    ({"num_tokens": np.int64(-2)}, "num_tokens of 'a' is -2, below 0"),
    ({"tail": -(10**40)}, "below 0"),
    ({"tail": [1]}, r"tail of 'a' is \[1\], a list"),
    ({"arrival_time": "now"}, "arrival_time of 'a' is 'now', not a finite number"),
    ({"arrival_time": "1.5"}, "arrival_time of 'a' is '1.5'"),
    ({"arrival_time": None}, "arrival_time of 'a' is None"),
    ({"arrival_time": float("inf")}, "arrival_time of 'a' is inf"),
    ({"arrival_time": np.float32("nan")}, "arrival_time of 'a' is .*nan"),
    ({"arrival_time": 10**400}, "arrival_time of 'a' is 1000"),
    ({"arrival_time": 1j}, "arrival_time of 'a' is 1j"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=lambda value: repr(value)[:40])
def test_a_wrong_argument_is_named_with_its_value(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidKey, match=message):
        PendingRequest(**{"request_id": "a", "key": [1], "arrival_time": 0.0, **arguments})


def test_who_it_is_accounted_to() -> None:
    assert PendingRequest("a", [1], 0.0).tenant == ""
    assert PendingRequest("a", [1], 0.0, "", 0, 0, "team").tenant == "team"
