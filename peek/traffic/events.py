"""What a log tells of a request: that it came, and how it ended."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Arrival(NamedTuple):
    """A request has come.

    Attributes:
        name: by which its end is known; of two with one name the later one counts.
        at_s: seconds on any clock, the same for all; None: the log does not say.
        prompt: text, or token ids.
        namespace: what keeps equal prompts from sharing cache: model, LoRA adapter, salt.
        tenant: who asks; "" for all: nobody says.
        most_tokens: what the answer was allowed, 0: unknown.
        is_bare: `at_s` is a number as the log has it, from any start, whose unit nobody tells; see
            `peek.traffic.times.bare_unit`.
    """

    name: str
    at_s: float | None
    prompt: str | list[int]
    namespace: str = ""
    tenant: str = ""
    most_tokens: int = 0
    is_bare: bool = False


class Ending(NamedTuple):
    """A request is done, or a part of its answer is.

    Attributes:
        name: the arrival's.
        output_tokens: of the answer; several endings of one request add up.
        prompt_tokens: as the engine counts them, 0: unknown.
        cached_tokens: of them in the cache, as the engine says; -1: unknown.
    """

    name: str
    output_tokens: int
    prompt_tokens: int = 0
    cached_tokens: int = -1


Event: TypeAlias = Arrival | Ending
