"""Policies of one's own, in plain Python, on either build."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import NOW, cache_of, ids, planner_of, rows_of

from peek import AdmissionPolicy, Cycle, PeekConfig, PendingRequest, Planner, PolicyFault

EMPTY = cache_of([])


class Longest(AdmissionPolicy):
    """Longest prompt first, ties in arrival order."""

    def __init__(self) -> None:
        super().__init__(reads_cache=False, reads_tree=False)
        self.seen: list[Cycle] = []

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        self.seen.append(cycle)
        return sorted(queue, key=lambda request: -request.num_tokens)


class BigClusters(AdmissionPolicy):
    def __init__(self) -> None:
        super().__init__(needs_sharing=True, theta=1)

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        return sorted(queue, key=lambda request: (-request.cluster_size, -request.cached_len, -request.score))


def test_a_policy_in_plain_python() -> None:
    policy = Longest()
    planner = planner_of(rows_of([1], [2] * 3, [3] * 2), PeekConfig("fcfs"), policy=policy)
    assert planner.plan(EMPTY, NOW) == ["r1", "r2", "r0"]
    (cycle,) = policy.seen
    assert (cycle.now, cycle.unit_tokens, cycle.work_done, cycle.defers_siblings) == (NOW, 1, 0, False)
    assert cycle.tree is planner.tree
    assert planner.stats.cache_calls == 0


def test_a_policy_in_plain_python_sees_the_signals() -> None:
    planner = planner_of(rows_of([1], [2, 3], [2, 4], [2, 4]), PeekConfig(), policy=BigClusters())
    assert planner.plan(cache_of([("", (2, 3))]), NOW) == ["r1", "r2", "r3", "r0"]
    requests = planner.tree.requests()
    assert [r.cluster_size for r in requests] == [1, 3, 2, 2]
    assert [r.cached_len for r in requests] == [0, 2, 1, 1]
    assert ids(requests) == ["r0", "r1", "r2", "r3"]


TAILED = st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(0, 5))


@given(st.lists(TAILED, min_size=1, max_size=6))
def test_a_tail_scores_as_symbols_that_no_other_request_has(rows: list[tuple[list[int], int]]) -> None:
    planner, twin = Planner(policy=BigClusters()), Planner(policy=BigClusters())
    for place, (key, tail) in enumerate(rows):
        planner.add(PendingRequest(f"r{place}", key, 0.0, tail=tail))
        twin.add(PendingRequest(f"r{place}", [*key, *range(100 + 5 * place, 100 + 5 * place + tail)], 0.0))
    planner.plan(EMPTY, NOW)
    for request in planner.requests():
        score = twin.tree.score(request.request_id)
        assert planner.tree.score(request.request_id) == score
        assert request.score == score or not planner.has_sharing  # the planner stood aside


FORGETFUL = """
from peek import AdmissionPolicy, EvictionPolicy, Planner, PendingRequest, PendingTree, PolicyFault
from peek.trie.tree_view import TreeView

class Forgetful({base}):
    def oder(self, queue, cycle):
        return queue

try:
    {call}
except (PolicyFault, NotImplementedError):
    print("refused")
"""


@pytest.mark.parametrize(
    ("base", "call"),
    [
        ("AdmissionPolicy", "Planner(policy=Forgetful(), strict=True).plan(TreeView(PendingTree()), 0.0)"),
        ("EvictionPolicy", "Forgetful().score(1, 1, 0.0)"),
    ],
)
def test_a_policy_without_its_method_is_an_error(base: str, call: str) -> None:
    script = FORGETFUL.format(base=base, call=call)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "refused\n", "")


class Failing(AdmissionPolicy):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        raise self.error


def test_a_fault_has_a_cause_and_is_never_its_own() -> None:
    """Code that follows `__cause__` until there is none has to come to an end."""
    unlucky, refused = KeyError("r0"), PolicyFault("it has no order")
    for error, cause in ((unlucky, unlucky), (refused, None)):
        planner = planner_of(rows_of([1]), policy=Failing(error), strict=True)
        with pytest.raises(PolicyFault) as caught:
            planner.plan(EMPTY, NOW)
        assert caught.value.__cause__ is cause
