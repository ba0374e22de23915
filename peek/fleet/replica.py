"""One replica as the fleet sees it: what it holds, who waits for it, and what it still has to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from peek.config import PeekConfig
from peek.errors import InvalidConfig
from peek.fleet.config import FleetConfig
from peek.fleet.held import HeldView
from peek.fleet.history import RoutedHistory
from peek.fleet.ticket import Ticket
from peek.planner.planner import Planner
from peek.request import PendingRequest
from peek.settings import require_within
from peek.trie.cache_answers import block_symbols_of, unit_tokens_of
from peek.trie.pending_tree import PendingTree
from peek.trie.tree_view import Place, TreeView, follow

if TYPE_CHECKING:
    from peek.protocols import CacheView


@final
class Replica:
    """State of one replica; only `FleetPlanner` changes it.

    Args:
        name: the host's.
        config: the order among those who wait for it.
        told: its cache; None where it does not tell, and has to be guessed.
        capacity: symbols its cache has room for.
        unit_tokens: tokens per symbol.
        speed: how many times faster it works than a replica of speed 1.0.

    Attributes:
        planner: those who wait for it.
        view: what its cache is taken to hold.
        history: prompts that it has computed; not kept where its cache tells.
        coming: prompts that were sent there and have no first token.
        guesses: its cache does not tell.
        accepting: it may be sent requests; False while it is paused or leaves.
        leaving: it is gone once its last request has ended.
        due: somebody may wait for it of whose prompt it holds half.
        fruitless: `Homes.settled` when it last found nothing to take over; -1 after news from it.
        spared, spared_budget: of whom, and what it might have cost.
        waiting_tokens: uncached and decode tokens of those who wait for it.
        unstarted_tokens: uncached tokens of those sent there who have no first token.
        decode_tokens: tokens of the answers of those sent there.
        under_way: those sent there, by id.
        unstarted: how many of them have no first token.
    """

    __slots__ = (
        "accepting",
        "coming",
        "decode_tokens",
        "due",
        "fruitless",
        "guesses",
        "history",
        "leaving",
        "name",
        "planner",
        "spared",
        "spared_budget",
        "speed",
        "under_way",
        "unit_tokens",
        "unstarted",
        "unstarted_tokens",
        "view",
        "waiting_tokens",
    )

    def __init__(
        self,
        name: str,
        config: PeekConfig,
        told: CacheView | None,
        capacity: i64,
        unit_tokens: i64,
        speed: float,
    ) -> None:
        self.name = name
        self.planner = Planner(config)
        self.unit_tokens: i64 = unit_tokens
        self.speed: float = speed
        self.guesses: bool = told is None
        self.history = RoutedHistory(capacity, unit_tokens)
        self.coming = PendingTree()
        cache: CacheView = self.history if told is None else told
        self.view = HeldView(cache, TreeView(self.coming, unit_tokens))
        self.accepting: bool = True
        self.leaving: bool = False
        self.due: bool = False
        self.fruitless: i64 = -1
        self.spared: Replica | None = None
        self.spared_budget: float = 0.0
        self.waiting_tokens: i64 = 0
        self.unstarted_tokens: i64 = 0
        self.decode_tokens: i64 = 0
        self.under_way: dict[str, Ticket] = {}
        self.unstarted: i64 = 0

    @property
    def backlog(self) -> float:
        """Tokens it has to compute and decode, as a replica of speed 1.0 would count them.  O(1)."""
        return float(self.waiting_tokens + self.unstarted_tokens + self.decode_tokens) / self.speed

    def cold_tokens(self, request: PendingRequest, key: bytes) -> i64:
        """Prompt tokens of a request that its cache lacks, at least 1.  O(common part)."""
        view = self.view
        segment = memoryview(key).cast("i")
        held: i64 = view.advance(view.root(request.namespace), segment, 0)[0]
        return max(1, request.num_tokens - held * self.unit_tokens)

    def added_tokens(self, request: PendingRequest, key: bytes) -> i64:
        """Prompt tokens that a request adds to its work, at least 1.  O(common part).

        A prefix that it holds adds nothing, nor does one that somebody who waits for it has.
        """
        cold = self.cold_tokens(request, key)
        tree = self.planner.tree
        root = tree.root(request.namespace)
        if root is None:
            return cold
        shared = follow(tree, key, Place(root, 0))[0] >> 2
        return min(cold, max(1, request.num_tokens - shared * self.unit_tokens))

    # -- the way of a request ------------------------------------------------------------------------

    def hold(self, ticket: Ticket, work: i64) -> None:
        """A request waits for this replica from now on; it adds `work` prompt tokens.  O(len(key))."""
        request = ticket.request
        request.key = ticket.key
        self.planner.add(request)
        ticket.key = b""
        ticket.replica = self
        ticket.work = work
        self.waiting_tokens += work + ticket.decode_tokens

    def release(self, ticket: Ticket) -> None:
        """A request no longer waits for this replica; its ticket has the key again.  O(len(key))."""
        request_id = ticket.request.request_id
        ticket.key = self.planner.tree.key_of(request_id)
        ticket.replica = None
        self.waiting_tokens -= ticket.work + ticket.decode_tokens
        self.planner.remove(request_id, False)

    def send(self, ticket: Ticket) -> None:
        """A request that waited for this replica goes there.  O(len(key))."""
        request = ticket.request
        key = self.planner.tree.key_of(request.request_id)
        work = self.cold_tokens(request, key)
        ticket.key = key
        self.waiting_tokens -= ticket.work + ticket.decode_tokens
        self.planner.remove(request.request_id, True, work)
        self.begin(ticket, work)

    def begin(self, ticket: Ticket, work: i64) -> None:
        """A request goes to this replica, which has `work` prompt tokens of it to compute.  O(len(key))."""
        request = ticket.request
        ticket.replica = self
        ticket.work = work
        ticket.sent = True
        self.under_way[request.request_id] = ticket
        self.unstarted += 1
        self.unstarted_tokens += work
        self.decode_tokens += ticket.decode_tokens
        self.coming.insert(request.request_id, ticket.key, request.namespace)

    def start(self, ticket: Ticket) -> None:
        """The first token of a request is there: its prompt is in the cache.  O(len(key)), once."""
        if not ticket.started:
            self._leave_queue(ticket)
            if self.guesses:
                request = ticket.request
                self.history.note(request.request_id, ticket.key, request.namespace)

    def end(self, ticket: Ticket, computed: bool) -> None:
        """A request sent here is done (`computed`), or given up.  O(len(key)) at most."""
        if computed:
            self.start(ticket)
        elif not ticket.started:
            self._leave_queue(ticket)
        self.decode_tokens -= ticket.decode_tokens
        del self.under_way[ticket.request.request_id]

    def _leave_queue(self, ticket: Ticket) -> None:
        ticket.started = True
        self.unstarted -= 1
        self.unstarted_tokens -= ticket.work
        self.coming.remove(ticket.request.request_id)


def new_replica(
    name: str, config: FleetConfig, view: CacheView | None, cache_tokens: int, speed: float
) -> Replica:
    """A replica as `FleetPlanner.join` describes it; `InvalidConfig` for numbers and views that cannot be."""
    require_within("cache_tokens", cache_tokens, 0, 2**60)
    require_within("speed", speed, 1e-6, 1e6)
    unit: i64 = config.unit_tokens
    if view is not None and (unit_tokens_of(view) != unit or block_symbols_of(view) > 1):
        raise InvalidConfig(
            f"view of {name!r} has {unit_tokens_of(view)} tokens a symbol and {block_symbols_of(view)} "
            f"symbols a block; need {unit} and 1"
        )
    return Replica(name, config.order, view, cache_tokens // unit, unit, speed)
