"""Which requests an idle replica takes over from the one with the most work (help).

The prompts that wait for the victim form a tree.  If the thief takes a whole branch near the root, hardly
anything is computed twice.  If it takes a part of a branch, it computes the prefix that leads there once
more.  So the search begins with the branches below the root and takes those that fit, fewest tokens computed
twice first.  If none fits, it goes on below the largest branch, and so on down to single requests.

A search looks at all requests that wait for the victim, so the result of a fruitless one is kept (`Looks`).
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import Any, final

from mypy_extensions import i64

from peek.fleet.replicas import Replica, Ticket
from peek.request import PendingRequest
from peek.trie.node import Node, next_branch, next_preorder


@final
class Branch:
    """Requests with a common prefix, and their tokens below the branch's parent, shared ones counted once."""

    __slots__ = (
        "edge_tokens", "node", "path_tokens", "request",
        "thief_cursor", "thief_tokens", "victim_cursor", "victim_tokens",
    )  # fmt: skip

    def __init__(
        self, node: Node | None, request: PendingRequest | None, own_tokens: i64, path_tokens: i64
    ) -> None:
        self.node = node  # the tree node that all of them pass
        self.request = request  # if there is no node: the one request, which ends at the branch's parent
        self.victim_tokens: i64 = own_tokens  # own tokens that the victim would still have to compute
        self.thief_tokens: i64 = own_tokens
        self.path_tokens: i64 = path_tokens  # tokens that the thief lacks of the prefix that leads there
        self.edge_tokens: i64 = 0  # tokens that it lacks of the first edge
        self.victim_cursor: object = None  # its view's cursor after that edge; None if it lacks a part of it
        self.thief_cursor: object = None


@final
class Raid:
    """Chooses the requests that `thief` takes from `victim`; `tickets` are all requests by id.

    The thief takes at most half of the difference in work, so neither ends later than the victim would have
    alone.  From a paused victim it takes everything.  Tokens that are computed twice count with the thief's
    `weight`.  If it is idle and the victim has no free seat, they cost nothing, and one request always fits.
    """

    def __init__(self, victim: Replica, thief: Replica, tickets: dict[str, Ticket]) -> None:
        self._victim = victim
        self._thief = thief
        self._tickets = tickets
        self._weight: float = thief.weight(0.0)
        self._needs_seats: bool = needs_seats(victim, thief)
        self._unit: i64 = victim.unit_tokens
        self._budget: float = budget(victim, thief)
        self._ahead: list[tuple[int, int, Branch]] = []
        self._serial: i64 = 0
        self._work: dict[int, int] = {}  # by `uid`, see `work_below`
        self.taken: list[str] = []
        self.least: float = inf  # the lowest price of a branch or request not taken, tokens

    def choose(self) -> list[str]:
        """Return the requests to take, often none.  O(n), a call into each view per branch, and sorting."""
        for namespace, root in self._victim.planner.roots():
            self._work.update(work_below(root, self._tickets, self._unit))
            top = Branch(root, None, 0, 0)
            top.victim_cursor = self._victim.view.root(namespace)
            top.thief_cursor = self._thief.view.root(namespace)
            self._look_later(top)
        while self._ahead and not self.taken:
            self._take_below(heappop(self._ahead)[2])
        return self.taken

    def _take_below(self, top: Branch) -> None:
        """Take the branches below `top` that fit; queue the others."""
        branches = self._below(top)
        branches.sort(key=_extra_work)
        path: i64 = top.path_tokens + top.edge_tokens
        for branch in branches:
            price = self._price(branch, path)
            any_will_do = self._needs_seats and branch.node is None and not self.taken
            if price <= self._budget or any_will_do:
                self._budget -= price
                path = 0  # computed once for all branches that are taken
                self._take(branch)
                continue
            self.least = min(self.least, price)
            if branch.node is not None:
                self._look_later(branch)

    def _look_later(self, branch: Branch) -> None:
        """Queue a branch; the search goes on below the largest first."""
        self._serial += 1
        heappush(self._ahead, (-branch.thief_tokens, self._serial, branch))

    def _price(self, branch: Branch, path: i64) -> float:
        """Tokens that the thief computes and decodes; those computed twice count with its weight."""
        weight = 0.0 if self._needs_seats else self._weight
        return weighed(branch.thief_tokens + path, branch.victim_tokens, weight)

    def _take(self, branch: Branch) -> None:
        if branch.node is None:
            assert branch.request is not None
            self.taken.append(branch.request.request_id)
            return
        stop = next_branch(branch.node)
        node: Node | None = branch.node
        while node is not None and node is not stop:
            terminator = node.terminator
            while terminator is not None:
                self.taken.append(terminator.request.request_id)
                terminator = terminator.next
            node = next_preorder(node)

    def _below(self, top: Branch) -> list[Branch]:
        """The branches and requests that hang directly below a branch."""
        assert top.node is not None
        found: list[Branch] = []
        depth = top.node.depth
        path = top.path_tokens + top.edge_tokens
        terminator = top.node.terminator
        while terminator is not None:
            request = terminator.request
            own = request.num_tokens - depth * self._unit
            own += self._tickets[request.request_id].decode_tokens
            found.append(Branch(None, request, max(1, own), path))
            terminator = terminator.next
        kid = top.node.kid
        while kid is not None:
            found.append(self._branch(kid, top, path))
            kid = kid.next
        return found

    def _branch(self, node: Node, top: Branch, path: i64) -> Branch:
        assert top.node is not None
        depth = top.node.depth
        branch = Branch(node, None, self._work[node.uid], path)
        segment = memoryview(node.edge).cast("i")
        held, branch.victim_cursor = _step(self._victim.view, top.victim_cursor, segment, depth)
        branch.victim_tokens = max(1, branch.victim_tokens - held * self._unit)
        held, branch.thief_cursor = _step(self._thief.view, top.thief_cursor, segment, depth)
        branch.thief_tokens = max(1, branch.thief_tokens - held * self._unit)
        branch.edge_tokens = (node.depth - depth - held) * self._unit
        return branch


@final
class Look:
    """The result of a fruitless search: each branch and request cost the thief more than there was to gain.

    Prices fall only in the ways that `Looks` checks, and with the thief's weight: then by no larger factor
    than the weight itself.
    """

    __slots__ = ("changes", "least", "losses", "newest", "weight")

    def __init__(self, victim: Replica, thief: Replica, least: float) -> None:
        self.least: float = least  # the lowest price, tokens
        self.weight: float = thief.weight(0.0)  # used in that price
        self.losses: i64 = victim.losses
        self.changes: i64 = thief.view.changes
        newest = next(victim.planner.newest(), None)
        self.newest: i64 = 0 if newest is None else newest.sequence


@final
class Looks:
    """Finds requests worth taking over, and searches only if the result may differ from the last search's.

    Nothing has become worth taking as long as all of these hold: the budget is below the lowest price that
    was found; no new request at the victim costs less; the thief got no prompt that shares more with one that
    waits there; and the victim lost no prompt.  What a cache drops by itself counts from the next search on;
    what a cache with a view of its own takes up counts once a request has ended there.
    """

    def __init__(self, tickets: dict[str, Ticket]) -> None:
        self._tickets = tickets
        # The last fruitless search, by numbers of thief and victim.
        self._by_thief: dict[int, dict[int, Look]] = {}

    def worth_taking(self, victim: Replica, thief: Replica) -> list[str]:
        """Return the ids of the requests that `thief` is to take from `victim`; often none.

        The cost of `Raid.choose`; if nothing has become worth it, O(k) for each new request and prompt.
        """
        if not needs_seats(victim, thief):
            most = budget(victim, thief)
            if most < 1.0 or self._still_dear(victim, thief, most):
                return []
        raid = Raid(victim, thief, self._tickets)
        taken = raid.choose()
        if not taken:
            self._by_thief.setdefault(thief.number, {})[victim.number] = Look(victim, thief, raid.least)
        return taken

    def _still_dear(self, victim: Replica, thief: Replica, most: float) -> bool:
        """Whether every request that waits for the victim is known to cost more than `most`."""
        look = self._by_thief.get(thief.number, {}).get(victim.number)
        if look is None or look.losses != victim.losses:
            return False
        part = min(1.0, thief.weight(0.0) / look.weight)
        gained = thief.view.gained_since(look.changes)
        if most >= look.least * part or gained is None:
            return False
        for namespace, key, held in gained:
            if key and victim.planner.shared_symbols(key, namespace) > held:
                return False
        look.changes = thief.view.changes
        last = look.newest
        for request in victim.planner.newest():
            if request.sequence <= look.newest:
                break
            last = max(last, request.sequence)
            ticket = self._tickets[request.request_id]
            work = thief.cold_tokens(request, victim.planner.key_of(request.request_id))
            price = weighed(work + ticket.decode_tokens, ticket.work + ticket.decode_tokens, look.weight)
            look.least = min(look.least, price)
        look.newest = last
        return most < look.least * part

    def renew(self, thief: Replica) -> None:
        """Search again for a thief: its engine may have reported more prompts than the fleet sent.  O(1)."""
        self._by_thief.pop(thief.number, None)

    def drop(self, replica: Replica) -> None:
        """Forget a replica that is gone.  O(R)."""
        self.renew(replica)
        for known in self._by_thief.values():
            known.pop(replica.number, None)


def weighed(thief_tokens: i64, victim_tokens: i64, weight: float) -> float:
    """Price of requests, in tokens: tokens that are computed twice count with a weight.  O(1)."""
    twice = max(0, thief_tokens - victim_tokens)
    return float(thief_tokens) + (weight - 1.0) * float(twice)


def budget(victim: Replica, thief: Replica) -> float:
    """Half of the difference in work, in tokens of the thief; no limit if the victim is paused.  O(1)."""
    if not victim.accepting:
        return inf
    return (victim.backlog - thief.backlog) / 2.0 * thief.speed


def needs_seats(victim: Replica, thief: Replica) -> bool:
    """Whether requests wait for a seat at the victim while the thief stands idle.  O(1)."""
    return thief.is_idle and victim.is_full


def _extra_work(branch: Branch) -> tuple[float, int]:
    """Sort key: few tokens computed twice first, then much work."""
    return float(branch.thief_tokens) / float(branch.victim_tokens), -branch.thief_tokens


def _step(view: Any, cursor: object, segment: memoryview, depth: i64) -> tuple[i64, object]:
    """Number of an edge's symbols that a view holds, and its cursor after the edge; None if not all."""
    if cursor is None:
        return 0, None
    held: i64 = 0
    held, behind = view.advance(cursor, segment, depth)
    return held, (behind if held == len(segment) else None)


def work_below(root: Node, tickets: dict[str, Ticket], unit_tokens: i64) -> dict[int, int]:
    """Tokens on a node's edge and below it, each edge once, by `uid` for all nodes of a root.  O(n)."""
    nodes: list[Node] = []
    work: dict[int, int] = {}
    node: Node | None = root
    while node is not None:
        total: i64 = 0
        terminator = node.terminator
        while terminator is not None:
            request = terminator.request
            own = request.num_tokens - node.depth * unit_tokens
            total += max(1, own + tickets[request.request_id].decode_tokens)
            terminator = terminator.next
        work[node.uid] = total
        nodes.append(node)
        node = next_preorder(node)
    i: i64 = len(nodes) - 1
    while i > 0:
        node = nodes[i]
        parent = node.parent
        assert parent is not None
        work[node.uid] += (node.depth - parent.depth) * unit_tokens
        work[parent.uid] += work[node.uid]
        i -= 1
    return work
