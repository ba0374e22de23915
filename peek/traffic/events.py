"""The events that logs are read into: arrivals of requests and ends of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias


class Arrival(NamedTuple):
    """The arrival of a request with a known prompt."""

    name: str  # name that links an `Ending` to the request; the later one, if two arrivals have it
    at_s: float | None  # seconds on any clock, one for all requests of a log; None if the log has no time
    prompt: str | list[int]  # the prompt as text or token ids
    namespace: str = ""  # what keeps equal prompts from sharing cache: model, LoRA adapter, salt
    tenant: str = ""  # name of the tenant; "" if unknown
    most_tokens: int = 0  # upper limit that the request sets on its answer, tokens; 0 if unknown
    is_bare: bool = False  # whether `at_s` is a number of unknown start and unit; see `bare_unit`
    priority: int = 0  # priority that the request asks for; 0 for none


class Measured(NamedTuple):
    """The arrival of a request with known lengths; the log has its prompt as block hashes, or not at all."""

    name: str  # name, at_s, tenant, is_bare: as in `Arrival`
    at_s: float | None
    prompt_tokens: int
    output_tokens: int  # 0 if unknown
    hash_ids: Sequence[int] | None = None  # chained, also for a partial block; None: unknown
    block_tokens: int = 0  # tokens per block; 0 without `hash_ids`
    tenant: str = ""
    is_bare: bool = False


class Ending(NamedTuple):
    """The end of a request, or of a part of its answer."""

    name: str
    output_tokens: int  # tokens of the answer or part; several endings of one request add up
    prompt_tokens: int = 0  # tokens of the prompt, as the engine counts them; 0 if unknown
    cached_tokens: int = -1  # cached tokens of the prompt, as the engine counts them; -1 if unknown


Event: TypeAlias = Arrival | Measured | Ending
