"""The patches for SGLang in docs/upstream, on SGLang's real requests, cache and policy."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_lab import CORES, HAS_CORES, POLICIES, VERSION, leaked, make_request, make_world
from sglang_stepper import Stepper
from support.whole import lay_over, module_at, run_with

from peek.policy.default import PeekOptions
from peek.policy.default.frontier import GAMMA, Ages, index, size

UPSTREAM = Path(__file__).parents[2] / "docs" / "upstream"
PATCHES = [UPSTREAM / f"sglang-0.5.23-{name}.patch" for name in ("aged-prefix", "policy-hook")]

pytestmark = pytest.mark.skipif(VERSION != "0.5.23", reason=f"the patches are for 0.5.23, this is {VERSION}")


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """SGLang's module of policies with both patches in it, beside the installed one."""
    folder = tmp_path_factory.mktemp("patched")
    assert not lay_over("sglang", PATCHES, folder)
    module = module_at(folder / "sglang/srt/managers/schedule_policy.py", "patched_schedule_policy")
    module.patched_folder = folder
    return module


WAITING = st.tuples(
    st.integers(2, 400),  # prompt
    st.integers(0, 400),  # cached of it
    st.integers(0, 10**6),  # tokens computed when it came
    st.booleans(),  # behind a sibling
)


@settings(max_examples=60, deadline=None)
@given(waiting=st.lists(WAITING, min_size=1, max_size=20), done=st.integers(0, 10**6))
def test_the_sorter_is_our_index_of_a_request_alone(patched: Any, waiting: list[Any], done: int) -> None:
    power = round(PeekOptions().power)
    queue = []
    for number, (prompt, cached, came, _) in enumerate(waiting):
        request = make_request(f"r{number}", list(range(3, 3 + prompt)), arrival=float(number + 1))
        request.num_matched_prefix_tokens = min(cached, prompt - 1)
        request.arrival_processed_tokens = came
        queue.append(request)
    siblings = {f"r{number}" for number, each in enumerate(waiting) if each[3]}
    patched.SchedulePolicy._sort_by_aged_prefix(queue, siblings, done)

    def ours(request: Any) -> float:
        length, cached = len(request.origin_input_ids), request.num_matched_prefix_tokens
        age = float(max(1, done - request.arrival_processed_tokens))
        own = float(length - cached)
        lightness = size(length, cached, own) ** -GAMMA
        of_age_alone = index(0.0, 1.0, 1.0, 1.0, Ages(), power)
        return age * index(cached / own, lightness, 1.0, 1.0, Ages(), power) / of_age_alone

    assert {request.rid for request in queue} == {f"r{number}" for number in range(len(waiting))}
    assert [request.rid in siblings for request in queue] == sorted(r.rid in siblings for r in queue)
    for one, other in pairwise(queue):
        if (one.rid in siblings) == (other.rid in siblings):
            assert ours(one) >= ours(other) * (1 - 1e-12)
            if ours(one) == ours(other):
                assert one.time_stats.wait_queue_entry_time < other.time_stats.wait_queue_entry_time


def play(policy_class: Any, policy: str, core: str | None, seed: int) -> Stepper:
    """Eight tenants, arrivals over time, a cache for a third of their prompts, chunks."""
    world = make_world(1500, policy="fcfs", core=core, page_size=1)
    world.policy = policy_class(policy, world.tree, False, False, False)
    stepper = Stepper(world, max_running=6, chunk=256, overlap=bool(seed % 2))
    rnd = random.Random(seed)
    for number in range(60):
        shared = [3 + rnd.randrange(8)] * rnd.choice((100, 200))
        own = [100 + rnd.randrange(900) for _ in range(rnd.randint(1, 60))]
        stepper.add(make_request(f"r{number}", shared + own, rnd.randint(1, 8), arrival=number + 1.0))
        if number % 3 == 0:
            stepper.step()
    stepper.run_out(20_000)
    assert leaked(world) == 0
    assert all(record.finished for record in stepper.records.values())
    return stepper


@pytest.mark.parametrize("policy", [*POLICIES, "shortest-prefill-first"] if HAS_CORES else [])
def test_policies_of_sglang_order_as_before(patched: Any, policy: str) -> None:
    from sglang.srt.managers.schedule_policy import SchedulePolicy

    for seed in range(3):
        before = play(SchedulePolicy, policy, "python", seed)
        after = play(patched.SchedulePolicy, policy, "python", seed)
        assert before.admissions == after.admissions
        assert before.at == after.at


@pytest.mark.parametrize("core", CORES)
def test_everybody_is_served_and_more_is_found(patched: Any, core: str | None) -> None:
    for seed in range(3):
        steppers = [play(patched.SchedulePolicy, policy, core, seed) for policy in ("fcfs", "aged-prefix")]
        found = [
            sum(record.admissions[0].cached for record in stepper.records.values()) for stepper in steppers
        ]
        assert found[0] < found[1]


def test_without_a_prefix_cache_it_is_first_come_first_served(patched: Any) -> None:
    world = make_world(1500)
    world.tree.disable = True
    policy = patched.SchedulePolicy("aged-prefix", world.tree, False, False, False)
    assert policy.policy == patched.CacheAgnosticPolicy.FCFS


HOOKED = """
import json, random, sys
from sglang.srt.managers.schedule_policy import OwnPolicy
from sglang_lab import key_of, make_request, make_world, stock_match
from sglang_stepper import Stepper
from support.whole import lay_over, module_at, run_with


class ShortestLast(OwnPolicy):
    seen = []
    told = []
    matched = []

    def order(self, waiting_queue, running_batch, processed_tokens):
        core = self.tree_cache.tree_core
        keys = [key_of(request) for request in waiting_queue]
        before = core.version
        lens = core.match_device_lens(keys)
        assert core.version == before, "a look counts as a change"
        for key, length, request in zip(keys, lens, waiting_queue):
            self.matched.append((core.version, request.rid, length))
            assert length == stock_match(world, request), request.rid
        waiting_queue.sort(key=lambda request: -len(request.origin_input_ids))
        self.seen.append([request.rid for request in waiting_queue])

    def admitted(self, reqs):
        self.told.append([request.rid for request in reqs])


class Told(Stepper):
    def _prefill_batch(self):
        batch = super()._prefill_batch()
        if batch is not None:
            self.policy.admitted(batch.reqs)
        return batch


world = make_world(1500, policy="__main__:ShortestLast", core=sys.argv[1])
stepper = Told(world, max_running=2)
rnd = random.Random(5)
for number in range(40):
    tokens = [3 + rnd.randrange(4)] * 120 + [100 + rnd.randrange(900) for _ in range(rnd.randint(1, 60))]
    stepper.add(make_request(f"r{number}", tokens, rnd.randint(1, 6), arrival=number + 1.0))
    if number % 2 == 0:
        stepper.step()
stepper.run_out(20000)
answers, versions = {}, set()
for version, rid, length in ShortestLast.matched:
    assert answers.setdefault((version, rid), length) == length, "another answer under the same version"
    versions.add(version)
print(json.dumps({
    "versions": len(versions),
    "found": sum(length > 0 for _, _, length in ShortestLast.matched),
    "told": [rid for rids in ShortestLast.told for rid in rids],
    "first": [admission.rid for admission in stepper.admissions],
}))
"""


@pytest.mark.parametrize("core", CORES)
def test_the_hook_orders_hears_and_reads_the_tree(patched: Any, core: str, tmp_path: Path) -> None:
    """A policy named by module and class, on the patched SGLang in a process of its own."""
    here = Path(__file__).parent
    path = [patched.patched_folder, here, here.parents[1], here.parent]
    said = run_with(path, tmp_path, "-c", HOOKED, core)
    assert sorted(said["told"]) == sorted(f"r{number}" for number in range(40))
    assert said["told"] == said["first"]
    assert said["versions"] > 20
    assert said["found"] > 0


def test_the_command_line_takes_names_and_classes_and_nothing_else(patched: Any) -> None:
    path = patched.patched_folder / "sglang" / "srt" / "arg_groups" / "arg_utils.py"
    module = module_at(path, "patched_arg_utils")
    choices = module.NamesOrClass(["fcfs", "lpm"])
    for name in ("fcfs", "lpm", "mine:Order", "my.policies:Order_2"):
        assert name in choices
    for name in ("", "fcsf", ":Order", "mine:", "my policies:Order", "mine:Order:more", "../mine:Order"):
        assert name not in choices
    assert list(choices) == ["fcfs", "lpm"]
