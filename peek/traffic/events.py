"""The events that logs are read into: arrivals of requests and ends of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias


class Arrival(NamedTuple):
    """The arrival of a request with a known prompt.

    Attributes:
        name: name that links an `Ending` to the request; of two arrivals with it, to the later one.
        at_s: seconds on any clock, one for all requests of a log; None if the log has no time.
        prompt: the prompt as text or token ids.
        namespace: what keeps equal prompts from sharing cache: model, LoRA adapter, salt.
        tenant: name of the tenant; "" if unknown.
        most_tokens: upper limit that the request sets on its answer, tokens; 0 if unknown.
        is_bare: whether `at_s` is a number from any start and of an unknown unit; see `bare_unit`.
        priority: priority that the request asks for; 0 for none.
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
    """The arrival of a request with known lengths; of its prompt the log has block hashes or nothing.

    Attributes:
        name, at_s, tenant, is_bare: as in `Arrival`.
        prompt_tokens, output_tokens: lengths of prompt and answer, tokens; 0 for an unknown answer.
        hash_ids: a chained id for each block, also a partial one; None if what the prompt shares is unknown.
        block_tokens: tokens per block; 0 without `hash_ids`.
    """

    name: str
    at_s: float | None
    prompt_tokens: int
    output_tokens: int
    hash_ids: Sequence[int] | None = None
    block_tokens: int = 0
    tenant: str = ""
    is_bare: bool = False


class Ending(NamedTuple):
    """The end of a request, or of a part of its answer.

    Attributes:
        output_tokens: tokens of the answer or part; several endings of one request add up.
        prompt_tokens: tokens of the prompt, as the engine counts them; 0 if unknown.
        cached_tokens: cached tokens of the prompt, as the engine counts them; -1 if unknown.
    """

    name: str
    output_tokens: int
    prompt_tokens: int = 0
    cached_tokens: int = -1


Event: TypeAlias = Arrival | Measured | Ending
