"""Split an ordered batch over replicas that do not share their caches.

The cost of a prompt is the number of tokens that it does not share with the prompt before it.  Prompts that
share a prefix are cut, in their order, into one contiguous run per replica.  A cut goes where neighbours
share least, near the replica's share of the work, since the shared tokens are computed once more.  Prompts
that share nothing come last, longest first, each to the replica with the least work, to even out the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from peek.errors import InvalidConfig
from peek.offline.batch_trie import shared_with_previous
from peek.offline.shape import BatchShape, Ints

MOST_REPLICAS: Final = 10_000
SLACK: Final = 0.02  # how far a cut may move from a replica's share of the work, as a part of that share
TRIES: Final = 64  # sizes of a share that are tried


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a batch that one replica runs: prompt indices, the prompt to run first at the front.

    `uncached_tokens` have to be computed with a cold cache, if a prompt hits only the prompt before it.
    """

    order: list[int]
    uncached_tokens: int


def split(shape: BatchShape, order: Sequence[int], replicas: int, block_tokens: int) -> list[Share]:
    """Split `order` over `replicas`, by uncached tokens; return one share per replica.  O(n log n).

    `order` has prompt indices whose neighbours share prefixes, as `Reordering.order` does; `shape` is in
    blocks of `block_tokens`.  Uncached tokens of shares differ by a few per cent at most, unless single
    prompts are larger than that.  `InvalidConfig` for `replicas` below 1.
    """
    if replicas < 1:
        raise InvalidConfig(f"{replicas} replicas")
    whole = np.asarray(order, np.int64)
    shares_nothing = (shape.count[shape.leaf] < 2) & (shape.depth[shape.parent[shape.leaf]] == 0)
    runs = whole[~shares_nothing[whole]]
    filler = whole[shares_nothing[whole]]
    filler = filler[np.argsort(-shape.tokens[filler], kind="stable")]
    shared = shared_with_previous(shape.parent.tolist(), shape.depth.tolist(), shape.leaf[runs].tolist())
    saved = saved_tokens(np.array(shared, np.int64), shape.tokens[runs], block_tokens)
    cuts, work = balanced(shape.tokens[runs] - saved, saved, int(shape.tokens[filler].sum()), replicas)
    orders = [runs[start:end].tolist() for start, end in pairwise(cuts)]
    least = [(tokens, replica) for replica, tokens in enumerate(work)]
    heapify(least)
    for index in filler.tolist():
        _, replica = least[0]
        orders[replica].append(index)
        work[replica] += int(shape.tokens[index])
        heapreplace(least, (work[replica], replica))
    return [Share(each, tokens) for each, tokens in zip(orders, work, strict=True)]


def saved_tokens(shared: Ints, tokens: Ints, block_tokens: int) -> Ints:
    """Return the tokens that prompts save by shared blocks; a prompt's last token is always computed."""
    return np.asarray(np.minimum(shared, np.maximum(tokens - 1, 0) // block_tokens) * block_tokens, np.int64)


def balanced(costs: Ints, saved: Ints, filler: int, replicas: int) -> tuple[list[int], list[int]]:
    """Return the places where each replica's run starts, with the end, and the work of each run, in tokens.

    Every cut adds work, and too small a share leaves too much of it to the last replica.  So sizes of a share
    are tried, from an even part to that plus the largest prompt; the size whose longest run is least wins.
    """
    total = np.concatenate([[0], np.cumsum(costs)])
    least = max(1.0, (int(total[-1]) + filler) / replicas)
    growth = (1.0 + (int((costs + saved).max(initial=0)) + filler) / least) ** (1.0 / (TRIES - 1))
    tried = []
    for step in range(TRIES):
        cuts = _cuts(total, saved, least * growth**step, filler / replicas, replicas)
        work = [
            int(total[end] - total[start]) + (int(saved[start]) if start < end else 0)
            for start, end in pairwise(cuts)
        ]
        tried.append((_longest(work, filler), sum(work), cuts, work))
    *_, cuts, work = min(tried)
    return cuts, work


def _longest(work: list[int], filler: int) -> float:
    """Return the work of the longest run, if the filler goes token by token to the shortest runs."""
    ascending = sorted(work)
    level = min((below + filler) / count for count, below in enumerate(accumulate(ascending), start=1))
    return max(ascending[-1], level)


def _cuts(total: Ints, saved: Ints, share: float, filler: float, replicas: int) -> list[int]:
    """Cut runs of about `share` work each, a little less or more if neighbours share less there.

    `total` is the work before each prompt, and of all; `saved` what each saves by the prompt before it;
    `filler` the work per replica that can even out runs that are too short.  All are in tokens.
    """
    n = len(saved)
    cuts = [0]
    for _ in range(replicas - 1):
        start = cuts[-1]
        origin = total[start] - (saved[start] if start < n else 0)
        aim = min(max(int(np.searchsorted(total, origin + share)), start), n)
        low = max(int(np.searchsorted(total, origin + share * (1 - SLACK) - filler)), start)
        high = min(int(np.searchsorted(total, origin + share * (1 + SLACK), side="right")), n)
        if low < high:
            window = saved[low:high]
            cheapest = low + np.flatnonzero(window == window.min())
            aim = int(cheapest[np.argmin(np.abs(total[cheapest] - origin - share))])
        cuts.append(aim)
    return [*cuts, n]
