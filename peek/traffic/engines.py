"""The request logs of vLLM and SGLang, without what a container runtime puts around a line.

A line that begins like a request's, but does not end as the engine ends it, is damaged.  So a part of a line
is never taken for the whole.  Prompts are quoted like Python strings, so none is mistaken for a log line.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from peek.errors import WorkloadError
from peek.offline.formats import request_of
from peek.traffic.events import Arrival, Ending, Event
from peek.traffic.rows import ending, tokens_of
from peek.traffic.times import seconds
from peek.traffic.wrapped import Inner

if TYPE_CHECKING:
    from peek.traffic.reader import Reader


@dataclass
class Facts:
    """A server's engine, arena in tokens and most running requests, as its log says; "" and 0 if unknown."""

    engine: str = ""
    arena_tokens: int = 0
    max_running: int = 0


class Format:
    """One format of a log; a subclass has to implement only `events`."""

    name: ClassVar[str] = ""
    kind: ClassVar[str] = "rows"  # rows of data; "log": a server's log
    hint: str = ""  # advice on how to get prompts into such a log

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.facts = reader.facts
        self.lines = 0  # lines of this format so far
        self.requests = 0  # requests read with prompts or lengths
        self.bare = 0  # requests without either

    def events(self, line: Inner) -> Iterable[Event] | None:
        """Return a line's events; None if it is of another format.  `WorkloadError` if it is broken."""
        raise NotImplementedError

    def note(self, message: str, **forms: re.Pattern[str]) -> None:
        """Store the numbers that a message gives; `forms` has a pattern for each field of `Facts`.

        A number above `LARGEST` is ignored: to simulate so large an arena would take all memory.
        """
        for name, form in forms.items():
            told = form.search(message)
            if number := tokens_of(told and told[1].replace(",", "")):
                setattr(self.facts, name, number)

    def begin(self) -> None:
        """Reset what holds only for one file, as another file begins."""

    def rest(self) -> Iterable[Event]:
        """Return the events that are still held back at the end of all files."""
        return ()

    def cut(self) -> str:
        """Return a message if the log has cut prompts; else ""."""
        return ""


_STRING: Final = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_LIST: Final = rf"\[(?:[^\]'\"]|{_STRING})*\]"
_IDS: Final = r"None|\[[\d, ]*\]"

_NOT_UNDERSTOOD: Final = "a request is logged in a way that is not understood: a part of a line?"

# -- vLLM -----------------------------------------------------------------------------------------------

_VLLM_OPENER: Final = re.compile(
    r"Request \S+ (?:details: prompt|JSON body): |Received request \S+: |Generated response \S+"
)
_EMBEDS: Final = r"prompt_embeds shape: (?:None|torch\.Size\([\[\]\d, ]*\))"
_VLLM_PROMPT: Final = re.compile(
    rf"Request (\S+) details: prompt: (None|{_STRING}), prompt_token_ids: ({_IDS}), {_EMBEDS}\.$"
)
_VLLM_BODY: Final = re.compile(r"Request (\S+) JSON body: (.*)$", re.DOTALL)
_VLLM_RECEIVED: Final = re.compile(r"Received request (\S+): params: (.*), lora_request: (.*)\.$", re.DOTALL)
_VLLM_OLD: Final = re.compile(
    rf"Received request (\S+): prompt: (None|{_STRING}), (?:prefix_pos: \S+, ?)?"
    r"(?:sampling_params|params|sampling params): (.*), "
    rf"prompt[ _]token[ _]ids: ({_IDS})(?:, {_EMBEDS})?"
    r"(?:, lora_request: (.*?)(?:, prompt_adapter_request: [^,]*)?)?\.$"
)
_VLLM_ANSWER: Final = re.compile(
    rf"Generated response (\S+)(?: \(streaming \w+\))?(?: details: output_token_ids: ({_IDS})"
    rf"|: output: (?:None|{_STRING})(?:, output_token_ids: ({_IDS}))?, finish_reason: \S+)$"
)
_VLLM_CUT: Final = re.compile(r"'max_log_len': (\d+)")
_VLLM_ARENA: Final = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
_VLLM_SEATS: Final = re.compile(r"'max_num_seqs': (\d+)")
_VLLM_LINE: Final = re.compile(
    r"(?:\(\S{1,99}(?: pid=\d+)?\) )?(TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r" (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) (?:\[[^\]]*\]|\S+:\d+\]) (?=.)"
)
_MAX_TOKENS: Final = re.compile(r"\bmax_tokens=(\d+)")
_LORA_NAME: Final = re.compile(rf"lora_name=({_STRING})")
_BODY_NAME: Final = re.compile(r"^[a-z]+[-_](.*?)(?:-\d+)?$")


class VllmLog(Format):
    """The log of vLLM 0.4 to 0.33 with `--enable-log-requests`; `--enable-log-outputs` adds answers.

    Prompts are logged at level DEBUG, before 0.19 at INFO in one line with the parameters.  From 0.33 on the
    bodies of requests may be logged at INFO.
    """

    name, kind = "vLLM's log", "log"
    hint = (
        "start vLLM with --enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG (0.33 also with"
        " VLLM_REQUEST_BODY_LOG_LEVEL=INFO): at level INFO its log has no prompts"
    )

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._prompts: dict[str, Arrival] = {}  # their parameters and LoRA adapter come in a later line
        self._bodies: dict[str, Arrival | None] = {}  # None: the body is cut, no request, or not needed
        self._tells_ids = False  # whether prompts are logged as ids; a body has only text
        self._last: datetime | None = None  # time of the line before
        self._cut_at = 0  # the server's `--max-log-len`; 0 if the log does not hold the server's start
        self._longest = 0
        self._as_long: Counter[int] = Counter()  # prompts with as many characters as tokens, by their length

    def events(self, line: Inner) -> Iterable[Event] | None:
        text, at_s, level = line.text, line.at_s, line.level
        if line.row is not None:
            return None
        opener = _VLLM_OPENER.search(text)
        head = _VLLM_LINE.search(text, 0, opener.end()) if opener else _VLLM_LINE.match(text)
        if head is None and opener is None and not level and not _VLLM_CUT.search(text):
            return None
        if at_s is None and head is not None:
            at_s = self._time(*map(int, head.groups()[1:]))
        if opener is None:
            return self._other(text[head.end() :] if head else text)
        self.facts.engine = "vllm"
        return self._request(text[opener.start() :], at_s, head[1] if head else level)

    def _time(self, month: int, day: int, hour: int, minute: int, second: int) -> float:
        # The log has no year: one begins with a January after a December, and ends in an older file.
        last = self._last or datetime(2000, month, 1)
        since = timedelta(days=day - 1, hours=hour, minutes=minute, seconds=second)
        moments = [datetime(last.year + step, month, 1) + since for step in (-1, 0, 1)]
        self._last = min(moments, key=lambda moment: abs(moment - last))
        return (self._last - datetime(2000, 1, 1)).total_seconds()

    def _other(self, message: str) -> Iterable[Event]:
        """Read the facts in a line that logs no request."""
        told = _VLLM_CUT.search(message)
        self._cut_at = tokens_of(told[1]) if told else self._cut_at
        self.note(message, arena_tokens=_VLLM_ARENA, max_running=_VLLM_SEATS)
        self.facts.engine = "vllm"
        _check_begins(message, "Request ", "Received request ", "Generated response ")
        return ()

    def _request(self, message: str, at_s: float | None, level: str) -> Iterator[Event]:
        if prompt := _VLLM_PROMPT.match(message):
            yield from self._prompt(prompt[1], at_s, prompt[2], prompt[3])
        elif (old := _VLLM_OLD.match(message)) and not _again(old[3], old[5] or ""):
            yield from self._prompt(old[1], at_s, old[2], old[4])
            yield from self._received(old[1], at_s, old[3], old[5] or "")
        elif body := _VLLM_BODY.match(message):
            self._body(body[1], at_s, body[2], level)
        elif (received := _VLLM_RECEIVED.match(message)) and not _again(received[2], received[3]):
            yield from self._received(received[1], at_s, received[2], received[3])
        elif answer := _VLLM_ANSWER.match(message):
            ids = answer[2] or answer[3] or "None"
            if ids not in ("None", "[]"):
                yield Ending(answer[1], ids.count(",") + 1)
        else:
            raise WorkloadError(_NOT_UNDERSTOOD)

    def _prompt(self, name: str, at_s: float | None, text: str, ids: str) -> Iterator[Event]:
        known = literal_eval(ids) or literal_eval(text)
        if not known:
            return  # the prompt is embeddings
        self._tells_ids |= ids != "None"
        if name in self._prompts:
            yield self._prompts.pop(name)
        self._prompts[name] = Arrival(name, at_s, known)
        self._longest = max(self._longest, len(known))
        if text != "None" and ids != "None":
            self._as_long[len(known)] += len(literal_eval(text)) == len(known)

    def _body(self, name: str, at_s: float | None, text: str, level: str) -> None:
        self._bodies[name] = None
        if level == "DEBUG":
            return  # at level DEBUG the token ids are logged, too
        try:
            request = request_of(self.reader.loads(text.encode("utf-8", "surrogatepass")))
        except (ValueError, RecursionError):
            return  # cut, or not a request; the log may still have the prompt in a line of its own
        self._bodies[name] = Arrival(name, at_s, request.prompt, request.namespace)

    def _received(self, name: str, at_s: float | None, params: str, lora: str) -> Iterator[Event]:
        found = _BODY_NAME.match(name)
        inner = [each for each in (name, found[1] if found else "") if each in self._bodies]
        arrival = self._prompts.pop(name, None)
        body = self._bodies.pop(inner[0]) if inner else None
        if arrival is None and body is not None and not self._tells_ids:
            arrival = body._replace(name=name, at_s=at_s if body.at_s is None else body.at_s)
        if arrival is None:
            self.bare += 1
            return
        allowed = _MAX_TOKENS.search(params)
        adapter = _LORA_NAME.search(lora)
        namespace = literal_eval(adapter[1]) if adapter else arrival.namespace
        yield arrival._replace(most_tokens=tokens_of(allowed and allowed[1]), namespace=namespace)

    def rest(self) -> Iterable[Event]:
        bodies = [] if self._tells_ids else [body for body in self._bodies.values() if body is not None]
        self.bare += len(self._bodies) - len(bodies)
        return [*self._prompts.values(), *bodies]

    def cut(self) -> str:
        """Return a message if the server's `--max-log-len` has cut prompts.

        The option cuts a prompt to as many characters as tokens.  If the log lacks the server's arguments,
        this is the sign: take the prompts with as many characters as tokens; most of them, and at least two,
        are as long as the longest prompt.
        """
        count = self._as_long[self._longest]
        is_pile = count > 1 and 2 * count > sum(self._as_long.values())
        if not (self._cut_at == self._longest if self._cut_at else is_pile):
            return ""
        where = f"vLLM's --max-log-len has cut prompts at {self._longest}"
        return f"{where}: what they share behind it is lost; log without it"


def _check_begins(message: str, *openers: str) -> None:
    """Raise `WorkloadError` for a message that ends within one of these openers."""
    if message and any(opener.startswith(message) for opener in openers):
        raise WorkloadError("a line that is cut off")


def _again(*texts: str) -> bool:
    """Whether another request's line begins inside a text, because two lines have become one."""
    return any(map(_VLLM_OPENER.search, texts))


# -- SGLang ---------------------------------------------------------------------------------------------

CUT: Final = "the log has cut the prompt; --log-requests-level 3 keeps it whole"

_SGLANG_LINE: Final = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)(?: [A-Z]+\d+)*\] (?=.)")
_SGLANG_CALL: Final = re.compile(r"(Receive|Finish): obj=(?:\w+)\(")
_SGLANG_ARENA: Final = re.compile(r"\bmax_total_num_tokens=(\d+)")
_SGLANG_SEATS: Final = re.compile(r"\bmax_running_requests=(\d+)")
_SGLANG_OWN: Final = re.compile(r"server_args=|max_total_num_tokens=|(?:Prefill|Decode) batch|^Load weight ")
_COUNTS: Final = ("completion_tokens", "prompt_tokens", "cached_tokens")
_NAMESPACES: Final = ("lora_path", "extra_key", "cache_salt")
_MAX_NEW_TOKENS: Final = re.compile(r"sampling_params=\[?\{[^{}]*'max_new_tokens': (\d+)")
_PRIORITY: Final = re.compile(r"\bpriority=(-?\d+)")
_ANY_STRING: Final = re.compile(r"'(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?")  # or its beginning, see `_MARKS`
_SGLANG_CUT: Final = 2048  # characters or items of a list to which `--log-requests-level 2` cuts a prompt


class SglangLog(Format):
    """The log of SGLang 0.4 and 0.5 with `--log-requests --log-requests-level 3`, as text or JSON."""

    name, kind = "SGLang's log", "log"
    hint = (
        "start SGLang with --log-requests --log-requests-level 3: below level 2 its log has no prompts, and"
        " level 2 cuts them"
    )

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._cut_prompts = 0

    def cut(self) -> str:
        said = f"prompts that SGLang's log has cut, left out: {self._cut_prompts:,} (--log-requests-level 3)"
        return said * bool(self._cut_prompts)

    def events(self, line: Inner) -> Iterable[Event] | None:
        text, at_s = line.text, line.at_s
        if line.row is not None:
            return self._row(line.row) if str(line.row.get("event")).startswith("request.") else None
        head = _SGLANG_LINE.match(text)
        if head is None:
            return None
        message = text[head.end() :]
        if not message.startswith(("Receive: ", "Finish: ")):
            return self._other(message)
        self.facts.engine = "sglang"
        return self._call(message, seconds(head[1]) if at_s is None else at_s)

    def _other(self, message: str) -> Iterable[Event] | None:
        self.note(message, arena_tokens=_SGLANG_ARENA, max_running=_SGLANG_SEATS)
        _check_begins(message, "Receive: obj=", "Finish: obj=")
        if "obj=GenerateReqInput(" in message:
            raise WorkloadError("two lines in one: neither is taken")
        if self.facts.engine != "sglang" and not _SGLANG_OWN.search(message):
            return None  # other servers begin their lines in the same way
        self.facts.engine = "sglang"
        return ()

    def _call(self, line: str, at_s: float) -> Iterator[Event]:
        head = _SGLANG_CALL.match(line)
        bare = _ANY_STRING.sub("", line)
        if head is None or line.count(head[0]) > 1 or bare.count("(") != bare.count(")"):
            raise WorkloadError(_NOT_UNDERSTOOD)
        name, at = _literal(line, "rid", head.end() - 1)
        if head[1] == "Finish":
            meta = line[line.rfind("'meta_info': {") :]
            counts = (re.search(rf"'{each}': (\d+)[,}}]", meta) for each in _COUNTS)
            yield ending(_one(name), *(int(count[1]) if count else None for count in counts))
            return
        try:
            prompt, at = _literal(line, "text", at)
            if prompt is None:
                prompt, at = _literal(line, "input_ids", at)
        except WorkloadError:
            self._cut_prompts += 1
            raise
        namespace = "/".join(_literal(line, each, at)[0] or "" for each in _NAMESPACES)
        allowed, ranked = _MAX_NEW_TOKENS.search(line, at), _PRIORITY.search(line, at)
        sampling = {"max_new_tokens": allowed[1]} if allowed else {}
        yield from self._arrivals(name, at_s, prompt, sampling, namespace, int(ranked[1]) if ranked else 0)

    def _row(self, row: dict[str, Any]) -> Iterator[Event]:
        self.facts.engine = "sglang"
        if row["event"] == "request.finished":
            meta = row["out"]["meta_info"]
            yield ending(_one(row["rid"]), *(meta[name] for name in _COUNTS))
        elif row["event"] == "request.received":
            asked = row["obj"]
            namespace = "/".join(asked.get(name) or "" for name in _NAMESPACES)
            prompt = asked.get("input_ids") or asked.get("text")
            sampling = asked.get("sampling_params") or {}
            at_s, priority = seconds(row["timestamp"]), asked.get("priority") or 0
            yield from self._arrivals(row["rid"], at_s, prompt, sampling, namespace, priority)

    def _arrivals(
        self, name: Any, at_s: float, prompt: Any, sampling: Any, namespace: str, priority: int
    ) -> Iterator[Arrival]:
        """Yield the arrival of one request, or of each request in a call with a list of them."""
        names, prompts = (name, prompt) if isinstance(name, list) else ([name], [prompt])
        if not prompt:
            self.bare += len(names)  # embeddings, or `--log-requests-level` below 2
            return
        samplings = sampling if isinstance(sampling, list) else [sampling] * len(names)
        if len(names) != len(prompts):
            raise WorkloadError(f"{len(names)} names for {len(prompts)} prompts")
        if any(map(_is_cut, prompts)):
            self._cut_prompts += 1
            raise WorkloadError(CUT)
        for each, asked, limits in zip(names, prompts, samplings, strict=False):
            allowed = tokens_of(limits.get("max_new_tokens"))
            yield Arrival(str(each), at_s, asked, namespace, most_tokens=allowed, priority=priority)


def _one(name: Any) -> str:
    return str(name[0] if isinstance(name, list) and len(name) == 1 else name)


def _is_cut(prompt: str | list[Any]) -> bool:
    half = _SGLANG_CUT // 2
    if isinstance(prompt, str):
        return len(prompt) == _SGLANG_CUT + 3 and prompt[half:-half] == "..."
    return len(prompt) == _SGLANG_CUT + 1 and prompt[half] == "..."


def _literal(line: str, name: str, start: int) -> tuple[Any, int]:
    """Return the first string or list field `name` after `start`, and its end; or None and `start`."""
    found = re.compile(rf"[(\s]{name}=({_STRING}|{_LIST})( \.\.\. )?").search(line, start)
    if found is None:
        return None, start
    if found[2]:
        raise WorkloadError(CUT)
    return literal_eval(found[1]), found.end()
