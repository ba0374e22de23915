"""The clients' traffic: data sets that the engines' own clients make, with sizes that follow the shape."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

from bench.servers.shapes import Shape

Rate: TypeAlias = "float | None"
"""Requests a second; None: all at once."""

PREFIXES: Final = 20
EACH: Final = 8
EACH_BY_RATE: Final = 6
"""Requests of a prefix; fewer where a rate, not a server, determines how long a run takes."""

ANSWER: Final = 8
CHUNK: Final = 32
"""Tokens of a block of the trace."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of traffic.

    Attributes:
        data: the client's name of the data set.
        load: the rate as a share of what the default served of the burst; 0: all at once.
        window: the client's `--max-concurrency`; 0: none.
        replays: whether it sends a file of sessions at the times of the file.
    """

    name: str
    data: str
    load: float = 0.0
    window: int = 0
    replays: bool = False

    def sizes(self, shape: Shape) -> dict[str, str | int | float]:
        """Return the client's options for what is sent."""
        prefix, own, each = shape.prefix, shape.prefix // 16, EACH_BY_RATE if self.load else EACH
        found: dict[str, str | int | float] = {"dataset_name": self.data}
        if self.data == "prefix_repetition":
            of = "prefix_repetition_"
            found |= {f"{of}prefix_len": prefix, f"{of}suffix_len": own, f"{of}num_prefixes": PREFIXES}
            return found | {f"{of}output_len": ANSWER, "num_prompts": PREFIXES * each}
        if self.data == "timed_trace":
            return found | {"timed_trace_chunk_hash_size": CHUNK, "num_prompts": SESSIONS * TURNS}
        if self.data == "generated-shared-prefix":
            return found | self._groups(prefix, own, each)
        found |= {"random_input_len": prefix // 2, "random_output_len": ANSWER, "num_prompts": 96}
        return found | {"random_range_ratio": 0.8 if self.data == "random" else 0.2}

    def _groups(self, prefix: int, own: int, each: int) -> dict[str, str | int | float]:
        turns = self.name == "turns"
        found: dict[str, str | int | float] = {
            "gsp_num_groups": 10 if turns else PREFIXES,
            "gsp_prompts_per_group": 4 if turns else each,
            "gsp_system_prompt_len": prefix // 2 if turns else prefix,
            "gsp_question_len": own,
            "gsp_output_len": ANSWER,
        }
        return found | ({"gsp_num_turns": 4} if turns else {})


SESSIONS: Final = 40
TURNS: Final = 4

CELLS: Final = {
    "vllm": (
        Cell("burst", "prefix_repetition"),
        Cell("window", "prefix_repetition", window=48),
        Cell("below", "prefix_repetition", load=0.7),
        Cell("above", "prefix_repetition", load=1.4),
        Cell("sessions", "timed_trace", load=1.0, replays=True),
        Cell("random", "random"),
    ),
    "sglang": (
        Cell("burst", "generated-shared-prefix"),
        Cell("window", "generated-shared-prefix", window=48),
        Cell("below", "generated-shared-prefix", load=0.7),
        Cell("above", "generated-shared-prefix", load=1.4),
        Cell("turns", "generated-shared-prefix", window=24),
        Cell("random", "random-ids"),
    ),
}


def write_sessions(path: Path, shape: Shape, rate: float, seed: int) -> None:
    """Write sessions that grow turn by turn, as a trace in Mooncake's format, times in seconds.

    There are twelve system prompts of a prefix; each turn adds a sixteenth of one.  Sessions begin at random,
    and a turn follows the one before after a pause for reading.  `rate`: requests a second in the mean.
    """
    drawn = Random(seed)
    length = SESSIONS * TURNS / rate
    system, grows = max(1, shape.prefix // CHUNK), max(1, shape.prefix // 16 // CHUNK)
    rows: list[tuple[float, list[int]]] = []
    for session in range(SESSIONS):
        which = drawn.randrange(12)
        blocks = [1_000_000 + 1_000 * which + place for place in range(system)]
        at_s = drawn.uniform(0.0, 0.7 * length)
        for turn in range(TURNS):
            blocks = [*blocks, *(1_000 * session + 100 * turn + place for place in range(grows))]
            rows.append((at_s, blocks))
            at_s += drawn.uniform(0.05, 0.15) * length
    fields = (
        {
            "timestamp": round(at_s, 3),
            "input_length": CHUNK * len(blocks),
            "output_length": ANSWER,
            "hash_ids": blocks,
        }
        for at_s, blocks in sorted(rows)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in fields))
