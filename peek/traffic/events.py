"""What a log tells: that a request came, what it held, how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias


class Arrival(NamedTuple):
    """A request that came.

    Attributes:
        name: ties it to its ending; of two with one name the later one counts.
        at_s: seconds on any clock, the same for all; None: the log does not say.
        prompt: text, or token ids.
        namespace: what keeps equal prompts from sharing cache: model, LoRA adapter, salt.
        tenant: name of the tenant; "": unknown.
        most_tokens: what the answer was allowed, 0: unknown.
        is_bare: `at_s` is a number as the log has it, from any start, of an unknown unit; see `bare_unit`.
        priority: that it asked for; 0: none.
    """

    name: str
    at_s: float | None
    prompt: str | list[int]
    namespace: str = ""
    tenant: str = ""
    most_tokens: int = 0
    is_bare: bool = False
    priority: int = 0


class Measured(NamedTuple):
    """A request that came, of which the log has lengths, and of its prompt hashes or nothing.

    Attributes:
        at_s, tenant, is_bare: as of an `Arrival`.
        prompt_tokens, output_tokens: lengths; the answer's is 0 where it is unknown.
        hash_ids: one for each block begun, chained; None: what the prompt shares is not known.
        block_tokens: of a block; 0 without `hash_ids`.
        scope: ids are equal within it only.
    """

    name: str
    at_s: float | None
    prompt_tokens: int
    output_tokens: int
    hash_ids: Sequence[int] | None = None
    block_tokens: int = 0
    scope: str = ""
    tenant: str = ""
    is_bare: bool = False


class Ending(NamedTuple):
    """The end of a request, or of a part of its answer.

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


Event: TypeAlias = Arrival | Measured | Ending
