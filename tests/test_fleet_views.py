"""What a replica's cache is taken to hold, by history, by events and on its way; and what is taken over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleets import ModelReplica, NaiveCacheOf, Prompt, tokens_of
from support.listening import matched

from peek import DualWalk, PendingRequest, PendingTree
from peek.errors import InvalidConfig, InvalidKey
from peek.fleet import EventView, FleetConfig, FleetPlanner, RoutedHistory
from peek.fleet.replicas import Replica, Ticket
from peek.fleet.stealing import Raid
from peek.fleet.views import ReplicaView
from peek.simulation.caches import NAMELESS, BlockCache, SymbolTable
from peek.testing import check_cache_view
from peek.testing.twins import common_length, longest
from peek.trie.keys import pack

SPACES = st.sampled_from(["", "lora"])
KEYS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
PROMPTS = st.tuples(SPACES, KEYS)
DOINGS = ["wait", "send", "compute", "give up", "leave", "forget", "tell", "walk"]


STEP = st.tuples(st.sampled_from([*["note"] * 6, "forget", "clear"]), st.integers(0, 9), PROMPTS)
STEPS = st.lists(STEP, min_size=8, max_size=40)


@given(capacity=st.integers(0, 15), steps=STEPS, asked=PROMPTS)
def test_history_holds_the_newest_prompts_that_fit(
    capacity: int, steps: list[tuple[str, int, Prompt]], asked: Prompt
) -> None:
    history = RoutedHistory(capacity)
    twin: dict[str, Prompt] = {}
    for what, number, prompt in steps:
        name = str(number)
        if what == "note":
            history.note(name, pack(prompt[1]), prompt[0])
            twin = {other: key for other, key in twin.items() if other != name and key != prompt}
            twin[name] = prompt
            while tokens_of(twin.values(), 1) > capacity and len(twin) > 1:
                del twin[next(iter(twin))]
        elif what == "forget":
            history.forget(name)
            twin.pop(name, None)
        else:
            history.clear()
            twin.clear()
        assert history.symbols == tokens_of(twin.values(), 1)
        assert len(history) == len(twin)
        assert matched(history, asked[1], asked[0]) == longest(list(twin.values()), asked)


@given(cached=st.lists(PROMPTS, max_size=4), coming=st.lists(PROMPTS, max_size=4), asked=PROMPTS)
def test_a_replicas_view_is_the_longer_of_two(
    cached: list[Prompt], coming: list[Prompt], asked: Prompt
) -> None:
    view = ReplicaView(NaiveCacheOf(cached, 1), 0, 1)
    for number, (namespace, key) in enumerate(coming):
        view.send(str(number), pack(key), namespace)
    assert matched(view, asked[1], asked[0]) == longest(cached + coming, asked)
    assert view.held(pack(asked[1]), asked[0]) == longest(cached + coming, asked)


@given(computed=st.lists(PROMPTS, max_size=4), coming=st.lists(PROMPTS, max_size=4), asked=PROMPTS)
def test_a_guessed_cache_holds_what_was_computed(
    computed: list[Prompt], coming: list[Prompt], asked: Prompt
) -> None:
    view = ReplicaView(None, 1000, 1)
    for number, (namespace, key) in enumerate(coming + computed):
        view.send(str(number), pack(key), namespace)
        if number >= len(coming):
            view.compute(str(number), pack(key), namespace)
    assert view.held(pack(asked[1]), asked[0]) == longest(computed + coming, asked)


@given(computed=st.sets(st.integers(0, 9)), coming=st.lists(st.integers(0, 9), max_size=4))
def test_askers_share_at_least_half_of_what_is_here(computed: set[int], coming: list[int]) -> None:
    view = ReplicaView(None, 1000, 1)
    shared = [*computed, *coming]
    for number, symbols in enumerate(shared):
        key = pack([*range(symbols), 99])
        view.send(str(number), key, "lora")
        view.send(f"{number} of another", pack([*range(10)]), "")
        if number < len(computed):
            view.compute(str(number), key, "lora")
    half = max(1, max(shared, default=0) / 2)
    assert view.askers(pack([*range(9)]), "lora") == sum(each >= half for each in shared)


@given(data=st.data(), capacity=st.integers(0, 12), noted=st.sampled_from([1, 3, 256]), tells=st.booleans())
def test_a_walk_that_goes_on_finds_what_one_from_the_start_finds(
    data: st.DataObject, capacity: int, noted: int, tells: bool
) -> None:
    told = EventView(100)
    view = ReplicaView(told if tells else None, capacity, 1)
    view.most_noted = noted
    view.most_noted_bytes = data.draw(st.sampled_from([8, 2**20]), label="bytes")
    tree = PendingTree()
    going_on = DualWalk(tree)
    sent: dict[str, Prompt] = {}
    for number in range(12):
        doing = data.draw(st.sampled_from(DOINGS))
        if doing in ("wait", "send"):
            namespace, key = data.draw(PROMPTS)
            if doing == "wait":
                tree.insert(str(number), pack(key), namespace)
            else:
                view.send(str(number), pack(key), namespace)
                sent[str(number)] = (namespace, key)
        elif doing == "forget":
            view.forget()
        elif doing == "tell":
            namespace, key = data.draw(st.tuples(SPACES, st.lists(st.integers(0, 2), min_size=2, max_size=2)))
            told.stored([f"{namespace}{key}"], None, pack(key), namespace)
        elif doing == "leave" and len(tree) > 0:
            tree.remove(data.draw(st.sampled_from([each.request_id for each in tree.requests()])))
        elif doing in ("compute", "give up") and sent:
            name = data.draw(st.sampled_from(sorted(sent)))
            namespace, key = sent.pop(name)
            if doing == "compute":
                view.compute(name, pack(key), namespace)
            else:
                view.give_up(name)
        else:
            going_on.walk(view)
    found = going_on.match(view)
    assert found == DualWalk(tree).match(view)


@pytest.mark.parametrize("tells", [False, True])
def test_the_changes_of_a_view_keep_few_bytes_of_long_prompts(tells: bool) -> None:
    view = ReplicaView(EventView(100) if tells else None, 10_000, 1)
    view.most_noted_bytes = 10_000
    before = view.version
    for number in range(40):
        key = pack([number] * (1000 if number < 39 else 5000))
        view.send(str(number), key, "", number)
        view.compute(str(number), key, "")
        kept = view.gained_since(view._forgotten)
        assert kept is not None
        assert sum(len(each) for _, each, _ in kept) <= 10_000
        if number < 39:
            assert [held for _, each, held in kept if each][-1] == number
    assert view.changes == 80
    assert view.inserted_since(before) is None, "the walk begins anew"
    assert view.inserted_since(view.version) == []


def test_history_keeps_the_protocol() -> None:
    history = RoutedHistory(100)
    model: list[Prompt] = []
    for number in range(6):
        key = [number % 2] * 4 + [number]
        history.note(str(number), pack(key), "")
        model.append(("", key))
    check_cache_view(history, lambda key, namespace: longest(model, (namespace, key)))


@pytest.mark.parametrize("view", [RoutedHistory, EventView])
@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ((-1, 1), "capacity is -1;"), ((2**61, 1), "capacity is 2305843009213693952;"),
        ((2**64, 1), "capacity is 18446744073709551616;"), ((9, 0), "unit_tokens is 0;"),
        ((9, 2**63), "unit_tokens is 9223372036854775808;"),
    ],
)  # fmt: skip
def test_a_cache_of_an_impossible_size_is_refused(view: type, sizes: tuple[int, int], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        view(*sizes)


def test_numbers_of_numpys_are_hashes() -> None:
    view = EventView(100)
    hashes = list(np.array([7, 8, 2**64 - 1], np.uint64))
    view.stored(hashes[:1], None, pack([1, 2]))
    view.stored(hashes[1:], 7, pack([3, 4, 5, 6]))
    view.check()
    assert matched(view, [1, 2, 3, 4, 5, 6, 7], "") == 6
    view.removed([np.int64(8)])
    view.check()
    assert matched(view, [1, 2, 3, 4, 5, 6, 7], "") == 2


def test_a_cache_of_the_largest_size_keeps_what_it_is_told() -> None:
    view = EventView(2**60)
    view.stored([7], None, pack([1, 2, 3]))
    assert matched(view, [1, 2, 3, 4], "") == 3


# -- taking over -----------------------------------------------------------------------------------------

QUEUES = st.lists(st.tuples(PROMPTS, st.integers(0, 30)), min_size=1, max_size=12)


def replica_of(speed: float, cached: list[Prompt]) -> Replica:
    replica = Replica("g", 1, FleetConfig(unit_tokens=10), None, 10_000, speed)
    for number, (namespace, key) in enumerate(cached):
        replica.view.history.note(f"old {number}", pack(key), namespace)
    return replica


def wait(replica: Replica, queue: list[tuple[Prompt, int]]) -> dict[str, Ticket]:
    tickets = {}
    for number, ((namespace, key), answer) in enumerate(queue):
        request = PendingRequest(f"r{number}", None, float(number), namespace, 10 * len(key))
        ticket = Ticket(request, pack(key), answer, 0)
        replica.hold(ticket, replica.added_tokens(request, ticket.key))
        tickets[request.request_id] = ticket
    return tickets


@given(
    queue=QUEUES,
    speeds=st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.5, 1.0, 2.0])),
    cached=st.tuples(st.lists(PROMPTS, max_size=2), st.lists(PROMPTS, max_size=2)),
    decoding=st.integers(0, 20),
)
def test_help_never_makes_the_longest_backlog_longer(
    queue: list[tuple[Prompt, int]],
    speeds: tuple[float, float],
    cached: tuple[list[Prompt], list[Prompt]],
    decoding: int,
) -> None:
    victim, thief = replica_of(speeds[0], cached[0]), replica_of(speeds[1], cached[1])
    for number in range(decoding):  # they are what a token computed twice counts for
        request = PendingRequest(f"decodes {number}", [0], 0.0)
        thief.under_way[request.request_id] = Ticket(request, pack([0]), 0, 0)
    assert thief.weight(0.0) == min(thief.stickiness, 1.0 + 0.3 * decoding)
    tickets = wait(victim, queue)
    before = victim.backlog
    taken = Raid(victim, thief, tickets).choose()
    assert len(set(taken)) == len(taken)
    for request_id in taken:
        ticket = tickets[request_id]
        victim.release(ticket)
        thief.hold(ticket, thief.added_tokens(ticket.request, ticket.key))
    slack = len(taken) / thief.speed  # each counts with a token at least
    assert thief.backlog <= before + slack
    assert victim.backlog <= before


@given(queue=QUEUES, cached=st.lists(PROMPTS, max_size=2))
def test_a_thief_that_takes_nothing_would_have_paid_too_much_for_each(
    queue: list[tuple[Prompt, int]], cached: list[Prompt]
) -> None:
    victim, thief = replica_of(1.0, []), replica_of(1.0, cached)
    tickets = wait(victim, queue)
    if Raid(victim, thief, tickets).choose():
        return
    model = ModelReplica(1.0, 100, NaiveCacheOf(cached, 10))
    for prompt, answer in queue:
        assert model.cold_tokens(prompt, [], 10) + max(1, answer) > victim.backlog / 2


def test_a_whole_branch_goes_before_a_part_of_one() -> None:
    victim, thief = replica_of(1.0, []), replica_of(1.0, [])
    queue: list[tuple[Prompt, int]] = [(("", [1] * 30 + [2] * number), 0) for number in range(1, 40)]
    queue += [(("", [5] * 20), 0), (("", [6] * 20), 0)]
    tickets = wait(victim, queue)
    assert sorted(Raid(victim, thief, tickets).choose()) == ["r39", "r40"]


def test_of_one_hot_branch_the_thief_takes_a_part() -> None:
    victim, thief = replica_of(1.0, [("", [1] * 30)]), replica_of(1.0, [])
    tickets = wait(victim, [(("", [1] * 30 + [number] * 20), 0) for number in range(2, 40)])
    taken = Raid(victim, thief, tickets).choose()
    assert 1 < len(taken) < 19


# -- events ----------------------------------------------------------------------------------------------

Event = tuple[str, str, list[int], int, int]
"""What happens, in which namespace, to which prompt, from which of its blocks to which."""

TEXTS = st.lists(st.sampled_from([0, 0, 1, 2]), min_size=4, max_size=14)
HAPPENINGS = st.sampled_from([*["stored"] * 7, *["removed"] * 5, "cleared"])
HAPPENING = st.tuples(HAPPENINGS, SPACES, TEXTS, st.sampled_from([0, 0, 0, 1, 2, 3, 6]), st.integers(1, 7))
EVENTS = st.lists(HAPPENING, min_size=8, max_size=30)


class Table:
    """The blocks as an engine has them: by hash, with their copies, parents and symbols."""

    def __init__(self) -> None:
        self.blocks: dict[object, tuple[object, list[int]]] = {}
        self.copies: dict[object, int] = {}

    def stored(self, hashes: Sequence[object], parent: object, symbols: list[int], namespace: str) -> None:
        width = len(symbols) // len(hashes)
        for number, block in enumerate(hashes):
            here = symbols[number * width : (number + 1) * width]
            self.blocks[block] = (namespace if parent is None else parent, here)
            self.copies[block] = self.copies.get(block, 0) + 1
            parent = block

    def removed(self, hashes: Sequence[object]) -> None:
        for block in hashes:
            if block in self.copies:
                self.copies[block] -= 1
                if not self.copies[block]:
                    del self.copies[block], self.blocks[block]

    def clear(self) -> None:
        self.blocks.clear()
        self.copies.clear()

    def match(self, key: Sequence[int], namespace: str) -> int:
        """Symbols of a prompt that are there, of the last block also a part."""
        before: object = namespace
        matched = 0
        while True:
            below = [(block, here) for block, (parent, here) in self.blocks.items() if parent == before]
            reach = {block: common_length(here, key[matched:]) for block, here in below}
            whole = [block for block, here in below if reach[block] == len(here)]
            if not whole:
                return matched + max(reach.values(), default=0)
            before = whole[0]
            matched += reach[before]


def hashes_of(namespace: str, prompt: list[int], block: int) -> list[object]:
    """Chained names of a prompt's whole blocks; numbers, as engines have them."""
    return [hash((namespace, *prompt[: end * block])) for end in range(1, len(prompt) // block + 1)]


def play(view: EventView, twin: Table, event: Event, block: int) -> None:
    what, namespace, prompt, start, end = event
    chain = hashes_of(namespace, prompt, block)
    hashes, parent = chain[start:end], chain[start - 1] if 0 < start <= len(chain) else None
    if what == "cleared":
        view.clear()
        twin.clear()
    elif what == "removed":
        view.removed(hashes)
        twin.removed(hashes)
    elif hashes:
        symbols = prompt[start * block : (start + len(hashes)) * block]
        view.stored(hashes, parent, pack(symbols), namespace)
        twin.stored(hashes, parent, symbols, namespace)


@given(block=st.integers(1, 3), events=EVENTS, asked=st.lists(st.tuples(SPACES, TEXTS), max_size=5))
def test_any_events_give_the_blocks_answer(
    block: int, events: list[Event], asked: list[tuple[str, list[int]]]
) -> None:
    view, twin = EventView(1_000), Table()
    for event in events:
        before = view.version, [matched(view, key, space) for space, key in asked]
        play(view, twin, event, block)
        view.check()
        answers = [matched(view, key, space) for space, key in asked]
        assert answers == [twin.match(key, space) for space, key in asked]
        assert before[0] != view.version or before[1] == answers
        assert len(view) == len(twin.blocks)


@given(block=st.integers(1, 3), events=EVENTS, prompt=TEXTS, cuts=st.lists(st.integers(1, 13), max_size=4))
def test_walked_in_pieces_the_answer_is_the_same(
    block: int, events: list[Event], prompt: list[int], cuts: list[int]
) -> None:
    view, twin = EventView(1_000), Table()
    for event in events:
        play(view, twin, event, block)
    total, cursor = 0, view.root("")
    ends = sorted({cut for cut in cuts if cut < len(prompt)} | {len(prompt)})
    for start, end in zip([0, *ends], ends, strict=False):
        held, cursor = view.advance(cursor, memoryview(pack(prompt[start:end])).cast("i"), start)
        total += held
        if held < end - start:
            break
    assert total == twin.match(prompt, "")


@given(block=st.integers(1, 3), capacity=st.integers(0, 12), events=EVENTS, asked=st.lists(TEXTS, max_size=5))
def test_it_keeps_to_its_capacity_and_invents_nothing(
    block: int, capacity: int, events: list[Event], asked: list[list[int]]
) -> None:
    view, twin = EventView(capacity), Table()
    for event in events:
        play(view, twin, event, block)
        view.check()
        assert len(view) * block <= capacity
        assert all(matched(view, key, "") <= twin.match(key, "") for key in asked)


def test_it_is_a_cache_view() -> None:
    view, twin = EventView(1_000), Table()
    prompts = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8], [1, 2, 9, 9], [1, 5, 5, 5]]
    for prompt in prompts:
        for space in ("", "lora"):
            play(view, twin, ("stored", space, prompt, 0, 9), 2)
    changes = iter(prompts * 10)

    def change() -> None:
        play(view, twin, ("removed", "", next(changes), 1, 2), 2)

    check_cache_view(view, twin.match, prompts=prompts, namespaces=("", "lora"), change=change)


def test_what_has_grown_least_recently_goes_where_removals_were_lost() -> None:
    view = EventView(5)
    for prompt in (1, 2):
        view.stored([prompt * 10, prompt * 10 + 1], None, pack([prompt, prompt]))
    view.stored([20], None, pack([2]))
    view.stored([12], 11, pack([1]))
    view.stored([30], None, pack([3]))
    view.check()
    assert [matched(view, [prompt] * 3, "") for prompt in (1, 2, 3)] == [3, 0, 1]
    view.stored([20], None, pack([2]))
    view.removed([20])
    assert matched(view, [2], "") == 0


def test_a_block_of_three_copies_that_is_removed_and_told_again_joins_what_is_behind_it() -> None:
    view = EventView(1_000)
    view.stored([1, 2, 3], None, pack([6, 7, 8]))
    found = []
    for _ in range(2):
        view.stored([2], 1, pack([7]))
    for _ in range(3):
        view.removed([2])
        found.append(matched(view, [6, 7, 8], ""))
    view.stored([2], 1, pack([7]))
    assert [*found, matched(view, [6, 7, 8], "")] == [3, 3, 1, 3]


def test_blocks_of_another_size_are_left_out() -> None:
    view = EventView(100)
    view.stored([1], None, pack([5, 5]))
    view.stored([2, 3], 1, pack([6, 6]))
    assert (view.ignored, len(view)) == (2, 1)
    view.clear()
    view.stored([2, 3], None, pack([6, 6]))
    assert len(view) == 2


@pytest.mark.parametrize("symbols", [b"", b"\0\0\0\0", b"\0" * 12])
def test_symbols_that_do_not_fill_the_blocks(symbols: bytes) -> None:
    view = EventView(100)
    with pytest.raises(InvalidKey, match="do not fill 2 blocks"):
        view.stored([1, 2], None, symbols)
    view.check()
    assert len(view) == 0


@given(
    hashes=st.lists(
        st.tuples(st.integers(0, 4), st.none() | st.integers(0, 4), st.integers(0, 2)),
        min_size=5,
        max_size=20,
    )
)
def test_hashes_that_mean_anything_break_nothing(hashes: list[tuple[int, int | None, int]]) -> None:
    """A publisher may name two contents alike, or make circles: no answer is right then, none is an error."""
    view = EventView(100)
    for block, parent, symbol in hashes:
        view.stored([block, block + 1], parent, pack([symbol, symbol]))
        view.check()
        assert 0 <= matched(view, [symbol] * 9, "") <= 9
        view.removed([parent or 0])
        view.check()
    view.removed(list(range(6)) * 40)
    assert len(view) == 0
    view.check()


# -- a whole engine's cache, simulated --------------------------------------------------------------------


class Teller:
    """A simulated pool of blocks, and the events that one like it publishes."""

    def __init__(self, n_blocks: int) -> None:
        self.pool = BlockCache(n_blocks, unit_tokens=2)
        self.table = SymbolTable()
        self.view = EventView(n_blocks * 2)

    def serve(self, prompt: list[int], others: int) -> None:
        """Compute a prompt, let its blocks go, then `others` blocks of something else."""
        before = self.pool.names()
        symbols = self.table.intern(pack(prompt), 8, "")
        held = self.pool.match(symbols, len(symbols))
        self.pool.use(held)
        blocks = held + self.pool.take(len(symbols) - len(held))
        for block, symbol in zip(blocks[len(held) :], symbols[len(held) :], strict=True):
            self.pool.name(block, symbol)
        self.tell(before, prompt, symbols, len(held))
        self.pool.release(blocks)
        before = self.pool.names()
        self.pool.release(self.pool.take(others))
        self.tell(before, [], [], 0)

    def tell(self, before: frozenset[int], prompt: list[int], symbols: list[int], held: int) -> None:
        self.view.removed(sorted(before - self.pool.names() - {NAMELESS}))
        if symbols[held:]:
            parent = symbols[held - 1] if held else None
            self.view.stored(list(symbols[held:]), parent, pack(prompt[held * 2 : len(symbols) * 2]))


@given(
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=2, max_size=12), st.integers(0, 6)), max_size=12
    ),
    asked=st.lists(st.integers(0, 1), min_size=2, max_size=12),
)
def test_a_simulated_engine_is_followed_block_by_block(
    prompts: list[tuple[list[int], int]], asked: list[int]
) -> None:
    engine = Teller(8)
    for prompt, others in prompts:
        engine.serve(prompt, others)
        symbols = engine.table.intern(pack(asked), 8, "")
        assert matched(engine.view, asked, "") // 2 == len(engine.pool.match(symbols, len(symbols)))
        assert len(engine.view) == len(engine.pool.names())
        engine.view.check()


# -- in a fleet -------------------------------------------------------------------------------------------


def test_a_fleet_sends_a_prompt_where_events_say_it_is() -> None:
    views = {name: EventView(10_000) for name in ("a", "b", "c")}
    fleet = FleetPlanner(FleetConfig())
    for name, view in views.items():
        fleet.join(name, view=view)
    prompt = list(range(64))
    views["b"].stored(list(range(100, 104)), None, pack(prompt))
    for number in range(3):
        fleet.add(PendingRequest(f"r{number}", [*prompt, 70 + number], 0.0))
    assert [replica for _, replica in fleet.dispatch(0.0)] == ["b", "b", "b"]
