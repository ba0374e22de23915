"""What vLLM and SGLang write when they are told to log requests.

vLLM 0.19 to 0.33: `--enable-log-requests` at log level DEBUG, `--enable-log-outputs` for the lengths of chat
answers, as text or as JSON.  SGLang 0.5: `--log-requests --log-requests-level 3`, as text or as JSON.  All
other lines are none of our business.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

from peek.errors import WorkloadError
from peek.offline.formats.echo import clipped
from peek.traffic.events import Arrival, Ending, Event
from peek.traffic.times import seconds

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
    """Reads the lines of a log, one after another.

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
        """What the server was told of `--max-log-len`, 0 if the log does not hold its start."""
        self._longest = 0
        self._as_long: Counter[int] = Counter()
        """Of prompts with as many characters as tokens, how many have so many."""

    def events(self, line: str) -> Iterator[Event]:
        """What the line tells; `WorkloadError` if it tells it in a way that is not understood."""
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
                f"a request is logged in a way that is not understood: {clipped(repr(error))}"
            ) from None

    def rest(self) -> Iterator[Event]:
        """What was still waiting for its next line when the log ended."""
        yield from self._prompts.values()
        self._prompts.clear()

    def cut(self) -> str:
        """What to say if vLLM's `--max-log-len` has cut prompts, as far as it shows; "" if not.

        It leaves a prompt as many characters as tokens.  Where the log does not hold the server's arguments,
        that tells: two prompts or more at the greatest length of all, not because a token is a character.
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
        """Time and message."""
        if line.startswith("{"):
            row = self._loads(line.encode())
            return seconds(row["asctime"].replace(",", ".")), str(row["message"])
        line = _COLOURS.sub("", line) if "\x1b" in line else line
        found = _VLLM_TIME.search(line)
        if found is None:
            return None, line
        month, day, hour, minute, second = map(int, found.groups())
        if month < self._month - 6:  # no year is written: it was December, it is January
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
        return  # embeddings handed over, or a level below 2: nothing to tell a prefix by
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
