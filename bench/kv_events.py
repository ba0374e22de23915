"""Measures the cost of a view over KV events: of updates, of queries, and of memory.

    python -m bench.kv_events

Times are processor time of this machine, the median of some rounds.  Prompts have 4,096 tokens, the first
2,048 of which are shared in 100 groups; 400,000 tokens are held.  Events are decoded messages as engines
publish them.
"""

from __future__ import annotations

import argparse
import random
import tracemalloc
from collections.abc import Callable
from statistics import median
from time import thread_time
from typing import Any, Final

from bench.builds import require_compiled
from peek.adapters.kv_events import EventReader
from peek.fleet import EventView, RoutedHistory
from peek.protocols import CacheView
from peek.trie.keys import pack

PROMPT: Final = 4096
SHARED: Final = 2048
GROUPS: Final = 100
HELD: Final = 400_000
ROUNDS: Final = 200


def prompts(number: int, seed: int = 42) -> list[list[int]]:
    """Make prompts of all groups in turns."""
    rnd = random.Random(seed)
    heads = [[rnd.randrange(100_000) for _ in range(SHARED)] for _ in range(GROUPS)]
    tails = [[rnd.randrange(100_000) for _ in range(PROMPT - SHARED)] for _ in range(number)]
    return [heads[each % GROUPS] + tails[each] for each in range(number)]


def stored(prompt: list[int], block: int, held: int, seed: int = 0) -> dict[str, Any]:
    """Return the event that stores a prompt whose first `held` tokens are already stored."""
    hashes = [hash((seed, *prompt[:4], prompt[end - 1], end)) for end in range(block, len(prompt) + 1, block)]
    first = held // block
    event = {"type": "BlockStored", "block_hashes": hashes[first:], "medium": "GPU", "block_size": block}
    return {**event, "parent_block_hash": hashes[first - 1] if first else None, "token_ids": prompt[held:]}


def one_more(event: dict[str, Any], block: int) -> dict[str, Any]:
    """Return the event that stores one block after those of another event."""
    last = event["block_hashes"][-1]
    more = {
        "block_hashes": [hash((last, "more"))],
        "parent_block_hash": last,
        "token_ids": list(range(block)),
    }
    return {**event, **more}


def removal(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event that removes the blocks of another event."""
    return {"type": "BlockRemoved", "block_hashes": event["block_hashes"], "medium": "GPU"}


def each_us(work: Callable[[Any], object], over: list[Any]) -> float:
    """Return the median processor time of `work`, in microseconds."""
    taken = []
    for one in over:
        start = thread_time()
        work(one)
        taken.append(thread_time() - start)
    return median(taken) * 1e6


def asked_us(view: CacheView, asked: list[list[int]]) -> float:
    keys = [memoryview(pack(prompt)).cast("i") for prompt in asked]
    return each_us(lambda key: view.advance(view.root(""), key, 0), keys)


def run(block: int) -> None:
    """Print the row of a block size."""
    held = prompts(HELD // (PROMPT - SHARED))
    tracemalloc.start()
    view = EventView(10 * HELD)
    reader = EventReader(view)
    for number, prompt in enumerate(held):
        reader.apply([stored(prompt, block, SHARED if number >= GROUPS else 0)])
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    more = prompts(len(held) + ROUNDS)[len(held) :]
    events = [stored(prompt, block, SHARED) for prompt in more]
    grown = [one_more(event, block) for event in events]
    costs = [each_us(lambda event: reader.apply([event]), some) for some in (events, grown)]
    asked = [asked_us(view, more), asked_us(view, prompts(ROUNDS, 7))]
    costs += [each_us(lambda event: reader.apply([removal(event)]), some) for some in (grown, events)]
    assert reader.faults == 0
    cells = [f"{value:.1f}" for value in costs + asked]
    print(f"| {block} | {' | '.join(cells)} | {size / len(view):.0f} |", flush=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    require_compiled()
    print("| block | stored, us | one block more | that removed | all removed | hit | miss | bytes a block |")
    print("|---|---|---|---|---|---|---|---|")
    for block in (1, 16, 64):
        run(block)
    history = RoutedHistory(10 * HELD)
    held = prompts(HELD // (PROMPT - SHARED))
    for number, prompt in enumerate(held):
        history.note(str(number), pack(prompt), "")
    hit, miss = asked_us(history, held[-ROUNDS:]), asked_us(history, prompts(ROUNDS, 7))
    print(f"RoutedHistory: hit {hit:.1f}, miss {miss:.1f}")


if __name__ == "__main__":
    main()
