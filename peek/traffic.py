"""Recorded traffic as a block-hash trace: lines of a log in, rows in Mooncake's format out.  Opens no file.

`RequestRows` reads requests with their times, one JSON object a line; `EngineLog` reads what vLLM and SGLang
write when they log requests.  Both give arrivals and endings, of which a `Tracer` makes rows.  Prompts become
chained, salted block hashes as they come, and are forgotten.  The hash of a block is a keyed BLAKE2b of the
hash before it and the block's tokens.  So equal hashes mean equal prompts up to there, in one namespace, and
without the salt what a block holds cannot be tried out.
"""

from __future__ import annotations

import re
from array import array
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import blake2b
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias

from peek.errors import WorkloadError
from peek.offline.formats import (
    HEAD_NAMES,
    NAMESPACE_NAMES,
    SYMBOL_BYTES,
    Encode,
    excerpt,
    excerpt_of,
    key_of,
    kind_of,
    params_or_row,
    request_of,
)


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
    """

    name: str
    at_s: float | None
    prompt: str | list[int]
    namespace: str = ""
    tenant: str = ""
    most_tokens: int = 0
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


Event: TypeAlias = Arrival | Ending


# -- times ----------------------------------------------------------------------------------------------

UNITS: Final = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Units of numbers, and how many of each make a second."""

_EPOCH_FLOOR_S: Final = 9e8
"""Seconds above this (1998) are a date; so are milliseconds a thousand times above it, and so on."""

_LONGEST_GAP_S: Final = 1000.0**0.5
"""Mean gap between two requests, at most.  One in 32 s keeps no engine busy, so no order would matter; 32 a
second, a thousand times as fast, is as far from one a second."""

_FRACTION: Final = re.compile(r"\.(\d{1,6})\d*")


def seconds(value: object, unit: str = "") -> float:
    """Read a time as seconds on a clock that all requests of a log share.

    Args:
        value: a number, a number as text, or a date and time after ISO 8601 (UTC where it names no zone).
        unit: of numbers, one of `UNITS`; "": by their size, small ones are seconds.

    Raises:
        WorkloadError: it is none of these.
    """
    number = _number(value)
    if number is None:
        return _date(value)
    if not isfinite(number) or number < 0:
        raise WorkloadError(f"time is {excerpt_of(value)}, not a time")
    if not unit:
        unit = next((name for name in ("ns", "us", "ms") if number >= UNITS[name] * _EPOCH_FLOOR_S), "s")
    return number / UNITS[unit]


def is_bare(value: object) -> bool:
    """Whether `seconds` takes this for seconds only because it is a small number."""
    number = _number(value)
    return number is not None and number < _EPOCH_FLOOR_S


def bare_unit(times: Sequence[float]) -> str:
    """Guess the unit, of `UNITS`, of numbers that begin anywhere, ascending or not.

    Clients that count from their start write fractions of seconds, or whole milliseconds (as Mooncake's
    traces do).  So fractions are seconds; whole numbers are the coarsest unit in which the mean gap is at
    most 32 s.
    """
    if not all(at.is_integer() for at in times):
        return "s"
    gap = mean_gap(times)
    return next((unit for unit, parts in UNITS.items() if gap <= parts * _LONGEST_GAP_S), "ns")


def doubt(times: Sequence[float], unit: str) -> str:
    """Say how bare numbers were read, so that a wrong unit shows; "" if no other is likely.

    Args:
        times: seconds, as they were read.
        unit: their `bare_unit`.
    """
    gap = mean_gap(times)
    if unit != "s":
        slow = f"one request would come in {gap * UNITS[unit]:,.0f} s"
        return (
            f"times are whole numbers without a unit, read as {unit}: as seconds {slow} (--time-unit s if so)"
        )
    if gap > _LONGEST_GAP_S or (gap >= 1.0 and all(at.is_integer() for at in times)):
        fast = f"--time-unit ms if they are {1000.0 / gap:,.0f} a second"
        return f"times are numbers without a unit, read as s: one request in {gap:,.0f} s ({fast})"
    return ""


def mean_gap(times: Sequence[float]) -> float:
    """Mean seconds between two requests, 0 where there are not two."""
    return (max(times) - min(times)) / (len(times) - 1) if len(times) > 1 else 0.0


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _date(value: object) -> float:
    if not isinstance(value, str):
        raise WorkloadError(f"time is {excerpt_of(value)}, not a time")
    text = _FRACTION.sub(lambda found: f".{found[1]:0<6}", value.strip().replace("Z", "+00:00"))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise WorkloadError(f"time is {excerpt_of(value)}, not a time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


# -- requests, one JSON object a line -------------------------------------------------------------------

TIME_NAMES: Final = (
    "timestamp", "arrival_time", "created", "created_at", "time", "ts", "request_time", "start_time",
)  # fmt: skip
"""Where the time is looked for, in this order; then the same in the request and in the response."""

OUTPUT_NAMES: Final = ("completion_tokens", "output_tokens", "output_length")
"""Where the answer's length is looked for: under `usage` of row and response, then in the row itself."""

_ALLOWED_NAMES: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class RequestRows:
    """Reads parsed rows.

    A row holds a request (chat, message, completion, response or embedding; text or token ids), by itself or
    under `body`, `request` or `params`, and beside it when it came and how long the answer was.

    Args:
        time, prompt, output, tenant: dotted paths; "": the usual places (no tenant).  The prompt is text,
            token ids or messages.  Messages have the tools and system prompts beside them put before them;
            text and token ids are taken as the whole.  The output is the answer's length, text or token ids.
        time_unit: of numeric times; see `seconds`.
        encode: text to token ids, for the length of answers that are text; None: four bytes count as a token.
    """

    time: str = ""
    prompt: str = ""
    output: str = ""
    tenant: str = ""
    time_unit: str = ""
    encode: Encode | None = None

    def events(self, row: Any, name: str) -> Iterator[Event]:
        """The arrival and, where the row tells of it, the ending; `WorkloadError` says what is wrong."""
        if not isinstance(row, dict):
            raise WorkloadError(f"a JSON {type(row).__name__}, not an object")
        body = next((row[key] for key in ("body", "request") if isinstance(row.get(key), dict)), None)
        body = params_or_row(row) if body is None else body
        request = request_of({"body": _asked(row, body, self.prompt) if self.prompt else body})
        tenant = _at(row, self.tenant) if self.tenant else None
        allowed = next((body[key] for key in _ALLOWED_NAMES if _is_count(body.get(key))), 0)
        ending = self._ending(row, name)  # first: what is wrong with it leaves the row out
        at = self._time(row, body)
        at_s = None if at is None else seconds(at, self.time_unit)
        bare = at_s is not None and not self.time_unit and is_bare(at)
        named = "" if tenant is None else str(tenant)
        yield Arrival(name, at_s, request.prompt, request.namespace, named, allowed, bare)
        yield ending

    def _ending(self, row: dict[str, Any], name: str) -> Ending:
        usage = _usage(row)
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        prompt_tokens = usage.get("prompt_tokens") or usage.get("input_tokens")
        known = _is_count(prompt_tokens) and isinstance(cached, int)
        return Ending(name, self._output(row, usage), *((prompt_tokens, cached) if known else ()))

    def _time(self, row: dict[str, Any], body: dict[str, Any]) -> object:
        """The time as it stands in the row, or None."""
        if self.time:
            return _required(row, self.time)
        places = ((place, name) for place in (row, body, *_responses(row)) for name in TIME_NAMES)
        return next((place[name] for place, name in places if place.get(name) is not None), None)

    def _output(self, row: dict[str, Any], usage: dict[str, Any]) -> int:
        """Tokens of the answer, 0 if the row does not tell."""
        if not self.output:
            found = [place.get(name) for place in (usage, row) for name in OUTPUT_NAMES]
            return int(next(filter(_is_count, found), None) or 0)
        value = _at(row, self.output)
        if isinstance(value, str):
            encode = self.encode
            return (
                -(-len(value.encode("utf-8", "surrogatepass")) // SYMBOL_BYTES)
                if encode is None
                else len(encode(value))
            )
        if isinstance(value, list):
            return len(value)
        if value is None or _is_count(value) or value == 0:
            return int(value or 0)
        raise WorkloadError(f"{self.output} is {excerpt_of(value)}, not the length of an answer")


def _asked(row: dict[str, Any], body: dict[str, Any], path: str) -> dict[str, Any]:
    """Make a body of the prompt at `path` and of what stands beside it."""
    prompt = _required(row, path)
    parent = _at(row, path.rpartition(".")[0]) if "." in path else row
    beside = {**body, **parent} if isinstance(parent, dict) else body
    is_chat = isinstance(prompt, list) and prompt and isinstance(prompt[0], dict)
    names = NAMESPACE_NAMES + (HEAD_NAMES if is_chat else ())
    return {
        **{name: beside[name] for name in names if name in beside},
        "messages" if is_chat else "prompt": prompt,
    }


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _responses(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The response, if it is in the row, and its body."""
    response = row.get("response")
    if not isinstance(response, dict):
        return []
    body = response.get("body")
    return [response, body] if isinstance(body, dict) else [response]


def _usage(row: dict[str, Any]) -> dict[str, Any]:
    for place in (row, *_responses(row)):
        if isinstance(place.get("usage"), dict):
            found: dict[str, Any] = place["usage"]
            return found
    return {}


def _at(row: Any, path: str) -> Any:
    """The value at a dotted path, or None.  Numbers count the items of a list."""
    for name in path.split("."):
        if isinstance(row, dict):
            row = row.get(name)
        elif isinstance(row, list) and name.isdecimal() and int(name) < len(row):
            row = row[int(name)]
        else:
            return None
    return row


def _required(row: dict[str, Any], path: str) -> Any:
    value = _at(row, path)
    if value is None:
        raise WorkloadError(f"has no {excerpt_of(path)}")
    return value


# -- the engines' logs ----------------------------------------------------------------------------------

_STRING: Final = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_LIST: Final = rf"\[(?:[^\]'\"]|{_STRING})*\]"

_VLLM_PROMPT: Final = re.compile(
    rf"Request (\S+) details: prompt: (None|{_STRING}), prompt_token_ids: (None|\[[\d, ]*\]), prompt_embeds"
)
_VLLM_RECEIVED: Final = re.compile(r"Received request (\S+): params: (.*), lora_request: (.*)\.$")
_VLLM_ANSWER: Final = re.compile(r"Generated response (\S+)(.*?)\boutput_token_ids: \[([\d, ]*)\]")
_VLLM_CUT: Final = re.compile(r"'max_log_len': (\d+)")
_VLLM_TIME: Final = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) ")
_MAX_TOKENS: Final = re.compile(r"\bmax_tokens=(\d+)")
_LORA_NAME: Final = re.compile(rf"lora_name=({_STRING})")
_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")

_SGLANG_JSON: Final = re.compile(r'\{"timestamp": .*"event": "request\.(received|finished)", .*\}$')
_SGLANG_TEXT: Final = re.compile(
    r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] (Receive|Finish): obj=GenerateReqInput\("
)
_COUNTS: Final = ("completion_tokens", "prompt_tokens", "cached_tokens")
_NAMESPACES: Final = ("lora_path", "extra_key", "cache_salt")
_MAX_NEW_TOKENS: Final = re.compile(r"sampling_params=\[?\{[^{}]*'max_new_tokens': (\d+)")
_SGLANG_CUT: Final = 2048
"""Characters or items that `--log-requests-level 2` leaves of a prompt."""

CUT: Final = "the log has cut the prompt; --log-requests-level 3 keeps it whole"


class EngineLog:
    """Reads the lines of an engine's log, one after another; lines that log no request tell nothing.

    vLLM 0.19 to 0.33: `--enable-log-requests` at log level DEBUG, `--enable-log-outputs` for the lengths of
    chat answers, as text or as JSON.  SGLang 0.5: `--log-requests --log-requests-level 3`, as text or as
    JSON.

    Args:
        loads: parses JSON.
    """

    def __init__(self, loads: Callable[[Any], Any]) -> None:
        self._loads = loads
        self._prompts: dict[str, Arrival] = {}
        """vLLM's requests whose parameters, with the LoRA adapter, come in the next line."""
        self._year = 2000
        self._month = 0
        self._cut_at = 0
        """The server's `--max-log-len`, 0 if the log does not hold its start."""
        self._longest = 0
        self._as_long: Counter[int] = Counter()
        """How many prompts have each length, of those with as many characters as tokens."""

    def events(self, line: str) -> Iterator[Event]:
        """Yield the events of a line; `WorkloadError` if it logs a request in an unknown way."""
        line = line.rstrip()
        try:
            if '"event": "request.' in line:
                yield from self._sglang_json(line)
            elif "obj=GenerateReqInput(" in line:
                yield from _sglang_text(line)
            elif "equest" in line or "Generated response" in line:
                yield from self._vllm(line)
        except (KeyError, TypeError, ValueError, AttributeError, SyntaxError, RecursionError) as error:
            if isinstance(error, WorkloadError):
                raise
            raise WorkloadError(
                f"a request is logged in a way that is not understood: {excerpt(repr(error))}"
            ) from None

    def rest(self) -> Iterator[Event]:
        """Yield the arrivals that still wait for their next line when the log ends."""
        yield from self._prompts.values()
        self._prompts.clear()

    def cut(self) -> str:
        """Say so if vLLM's `--max-log-len` has cut prompts, as far as it shows; else "".

        The option leaves a prompt as many characters as tokens.  Where the log does not hold the server's
        arguments, the sign is that two prompts or more, and most of those with as many characters as tokens,
        have the greatest length of all.
        """
        count = self._as_long[self._longest]
        is_pile = count > 1 and 2 * count > sum(self._as_long.values())
        if not (self._cut_at == self._longest if self._cut_at else is_pile):
            return ""
        where = f"vLLM's --max-log-len has cut prompts at {self._longest}"
        return f"{where}: what they share behind it is lost; log without it"

    # -- vLLM ------------------------------------------------------------------------------------------

    def _vllm(self, line: str) -> Iterator[Event]:
        at_s, message = self._vllm_line(line)
        prompt = _VLLM_PROMPT.search(message)
        if prompt is not None:
            name, text, ids = prompt.groups()
            known = literal_eval(ids if ids != "None" else text)
            if known:
                self._prompts[name] = Arrival(name, at_s, known)
                self._longest = max(self._longest, len(known))
                if text != "None" and ids != "None":
                    self._as_long[len(known)] += len(literal_eval(text)) == len(known)
            return
        received = _VLLM_RECEIVED.search(message)
        if received is not None:
            arrival = self._prompts.pop(received[1], None)
            if arrival is not None:
                allowed = _MAX_TOKENS.search(received[2])
                lora = _LORA_NAME.search(received[3])
                yield arrival._replace(
                    most_tokens=int(allowed[1]) if allowed else 0,
                    namespace=literal_eval(lora[1]) if lora else "",
                )
            return
        answer = _VLLM_ANSWER.search(message)
        if answer is not None and answer[3]:
            yield Ending(answer[1], answer[3].count(",") + 1)
            return
        told = _VLLM_CUT.search(message)
        if told is not None:
            self._cut_at = int(told[1])

    def _vllm_line(self, line: str) -> tuple[float | None, str]:
        """Time and message of a line."""
        if line.startswith("{"):
            row = self._loads(line.encode())
            return seconds(row["asctime"].replace(",", ".")), str(row["message"])
        line = _COLOURS.sub("", line) if "\x1b" in line else line
        found = _VLLM_TIME.search(line)
        if found is None:
            return None, line
        month, day, hour, minute, second = map(int, found.groups())
        if month < self._month - 6:  # no year is written: December came before January
            self._year += 1
        self._month = month
        moment = datetime(self._year, month, day, hour, minute, second)
        return (moment - datetime(2000, 1, 1)).total_seconds(), line

    # -- SGLang ----------------------------------------------------------------------------------------

    def _sglang_json(self, line: str) -> Iterator[Event]:
        found = _SGLANG_JSON.search(line)
        if found is None:
            return
        row = self._loads(found[0].encode())
        if found[1] == "finished":
            meta = row["out"]["meta_info"]
            yield Ending(row["rid"], *(meta[name] for name in _COUNTS))
            return
        asked = row["obj"]
        namespace = "/".join(asked.get(name) or "" for name in _NAMESPACES)
        prompt = asked.get("input_ids") or asked.get("text")
        sampling = asked.get("sampling_params") or {}
        yield from _sglang_arrivals(row["rid"], seconds(row["timestamp"]), prompt, sampling, namespace)


def _sglang_text(line: str) -> Iterator[Event]:
    head = _SGLANG_TEXT.match(line)
    if head is None:
        return
    name, at = _literal(line, "rid", head.end() - 1)
    if head[2] == "Finish":
        meta = line[line.rfind("'meta_info': {") :]
        counts = [re.search(rf"'{each}': (\d+)", meta) for each in _COUNTS]
        yield Ending(name, *(int(count[1]) for count in counts if count))
        return
    prompt, at = _literal(line, "text", at)
    if prompt is None:
        prompt, at = _literal(line, "input_ids", at)
    namespace = "/".join(_literal(line, each, at)[0] or "" for each in _NAMESPACES)
    allowed = _MAX_NEW_TOKENS.search(line, at)
    sampling = {"max_new_tokens": int(allowed[1])} if allowed else {}
    yield from _sglang_arrivals(name, seconds(head[1]), prompt, sampling, namespace)


def _sglang_arrivals(name: Any, at_s: float, prompt: Any, sampling: Any, namespace: str) -> Iterator[Arrival]:
    """One request, or several in one call."""
    if not prompt:
        return  # embeddings, or a level below 2: there is no prompt
    names = name if isinstance(name, list) else [name]
    prompts = prompt if isinstance(name, list) else [prompt]
    samplings = sampling if isinstance(sampling, list) else [sampling] * len(names)
    if len(names) != len(prompts):
        raise WorkloadError(f"{len(names)} names for {len(prompts)} prompts")
    for each, asked, limits in zip(names, prompts, samplings, strict=False):
        if _is_cut(asked):
            raise WorkloadError(CUT)
        yield Arrival(str(each), at_s, asked, namespace, most_tokens=limits.get("max_new_tokens") or 0)


def _is_cut(prompt: str | list[Any]) -> bool:
    half = _SGLANG_CUT // 2
    if isinstance(prompt, str):
        return len(prompt) == _SGLANG_CUT + 3 and prompt[half:-half] == "..."
    return len(prompt) == _SGLANG_CUT + 1 and prompt[half] == "..."


def _literal(line: str, name: str, start: int) -> tuple[Any, int]:
    """The first field of that name behind `start`, and its end; None if it is no text and no list."""
    found = re.compile(rf"[(\s]{name}=({_STRING}|{_LIST})( \.\.\. )?").search(line, start)
    if found is None:
        return None, start
    if found[2]:
        raise WorkloadError(CUT)
    return literal_eval(found[1]), found.end()


# -- rows of a trace ------------------------------------------------------------------------------------

_ID_BITS: Final = 53
"""Bits of a block's id: as many as JSON readers keep; equal by accident once in 2**53 pairs."""

_LARGEST_SALT: Final = 64
"""Bytes of a key of BLAKE2b."""


@dataclass(slots=True)
class _Traced:
    """A request, without its prompt."""

    at_s: float | None
    tokens: int
    hash_ids: array[int]
    tenant: str
    most_tokens: int
    output_tokens: int = 0


@dataclass
class Counts:
    """Counts of what went into a trace.

    Attributes:
        requests, prompt_tokens: all there are; tokens as `Tracer` counts them.
        texts: requests whose prompt is text.
        answered: requests whose output length is in the log.
        allowed: others whose allowed output length is in the log.
        engine_prompt_tokens, engine_cached_tokens: as the engine counts them, where it tells both.
        started_before: endings of requests that came before the log began.
        bare_times: requests whose time is a number of an unknown unit.
        span_s: seconds from the first to the last; known once there are rows.
        doubt: what to say of the unit in which the times were read; known once there are rows.
    """

    requests: int = 0
    prompt_tokens: int = 0
    texts: int = 0
    answered: int = 0
    allowed: int = 0
    engine_prompt_tokens: int = 0
    engine_cached_tokens: int = 0
    started_before: int = 0
    bare_times: int = 0
    span_s: float = 0.0
    doubt: str = ""


class Tracer:
    """Collects requests and gives them back as the rows of a trace.

    Args:
        salt: secret bytes; traces made with one salt have equal ids for equal prompts.
        block_tokens: tokens of a block.
        encode: text to token ids; None: four bytes count as a token.

    Attributes:
        counts: of all so far.

    Memory: 8 bytes per block of each request, and about 300 per request.
    """

    def __init__(self, salt: bytes, block_tokens: int, encode: Encode | None) -> None:
        self.counts = Counts()
        self._salt = salt if len(salt) <= _LARGEST_SALT else blake2b(salt).digest()
        self._block_tokens = block_tokens
        self._encode = encode
        self._traced: list[_Traced] = []
        self._by_name: dict[str, _Traced] = {}

    def take(self, event: Event) -> None:
        """Take one event.  About a microsecond per block.

        `InvalidKey` for token ids outside int32, `WorkloadError` for an empty prompt: nothing is noted.
        """
        if isinstance(event, Arrival):
            self._arrive(event)
        else:
            self._end(event)

    def _arrive(self, event: Arrival) -> None:
        if not event.prompt:
            raise WorkloadError("the prompt is empty")
        key = key_of(event.prompt, self._encode)
        ids = self._hash_ids(key, f"{event.namespace}/{kind_of(event.prompt)}")
        tenant = ""
        if event.tenant:
            tenant = self._digest(b"tenant", event.tenant.encode("utf-8", "surrogatepass")).hex()[:12]
        traced = _Traced(event.at_s, len(key) // SYMBOL_BYTES, ids, tenant, event.most_tokens)
        self._traced.append(traced)
        self._by_name[event.name] = traced
        self.counts.requests += 1
        self.counts.prompt_tokens += traced.tokens
        self.counts.texts += isinstance(event.prompt, str)
        self.counts.allowed += event.most_tokens > 0
        self.counts.bare_times += event.is_bare

    def _hash_ids(self, key: bytes, namespace: str) -> array[int]:
        chain = self._digest(b"namespace", namespace.encode("utf-8", "surrogatepass"))
        block_bytes = SYMBOL_BYTES * self._block_tokens
        ids = array("Q")
        for start in range(0, len(key), block_bytes):
            chain = self._digest(chain, key[start : start + block_bytes])
            ids.append(int.from_bytes(chain[:8], "little") >> (64 - _ID_BITS))
        return ids

    def _digest(self, before: bytes, content: bytes) -> bytes:
        hashed = blake2b(before, digest_size=16, key=self._salt)
        hashed.update(content)
        return hashed.digest()

    def _end(self, event: Ending) -> None:
        traced = self._by_name.get(event.name)
        if traced is None:
            self.counts.started_before += 1
            return
        if event.output_tokens > 0:
            if not traced.output_tokens:
                self.counts.answered += 1
                self.counts.allowed -= traced.most_tokens > 0
            traced.output_tokens += event.output_tokens
        if event.cached_tokens >= 0:
            self.counts.engine_prompt_tokens += event.prompt_tokens
            self.counts.engine_cached_tokens += event.cached_tokens

    def rows(self, unknown_tokens: int, rate: float | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows, ascending in time, the first at 0.

        Bare numbers get their unit here, all of them the same (`bare_unit`); among dates they are seconds.
        Where all times are whole seconds, the log has no finer ones: the requests of one second are spread
        evenly over it.

        Args:
            unknown_tokens: output length of a request where it is unknown.
            rate: requests a second, evenly apart, in place of the log's times.

        Raises:
            WorkloadError: a request has no time, and there is no `rate`.
        """
        times = self._times(rate)
        start = min(times, default=0.0)
        self.counts.span_s = max(times, default=0.0) - start
        for place in sorted(range(len(times)), key=times.__getitem__):
            traced = self._traced[place]
            row = {
                "timestamp": round(1000.0 * (times[place] - start), 3),
                "input_length": traced.tokens,
                "output_length": traced.output_tokens or traced.most_tokens or unknown_tokens,
                "hash_ids": traced.hash_ids.tolist(),
                "block_tokens": self._block_tokens,
            }
            yield {**row, "tenant": traced.tenant} if traced.tenant else row

    def _times(self, rate: float | None) -> list[float]:
        if rate is not None:
            return [place / rate for place in range(len(self._traced))]
        times = [traced.at_s for traced in self._traced if traced.at_s is not None]
        if len(times) < len(self._traced):
            missing = len(self._traced) - len(times)
            raise WorkloadError(f"{missing} of {len(self._traced)} requests have no time")
        if self.counts.bare_times == len(times):
            unit = bare_unit(times)
            times = [number / UNITS[unit] for number in times]
            self.counts.doubt = doubt(times, unit)
        return _spread(times) if all(at_s.is_integer() for at_s in times) else times


def _spread(times: list[float]) -> list[float]:
    """Spread equal whole seconds evenly inside their second, in the order they came."""
    of_second: dict[float, int] = {}
    for at_s in times:
        of_second[at_s] = of_second.get(at_s, 0) + 1
    seen: dict[float, int] = {}
    spread = []
    for at_s in times:
        spread.append(at_s + seen.get(at_s, 0) / of_second[at_s])
        seen[at_s] = seen.get(at_s, 0) + 1
    return spread
