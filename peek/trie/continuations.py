"""Sessions of requests that name none: a prompt that continues an earlier one is the session's next turn.

The next turn of a conversation, or of an agent, sends the whole prompt of the turn before, its answer, and
something new.  `Continuations` remembers how prompts ended.  A prompt that has the same symbols at the same
place, and continues after them, belongs to the earlier prompt's session.  To find that prompt, a few symbols
are compared at every `STEP_TOKENS` within the last `REACH_TOKENS` of the new prompt.

Only the end of a prompt is compared, not what comes before.  So two prompts that differ there may be taken
for turns of one session, and a client can forge such a prompt.  It gains no more than by naming a session.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from mypy_extensions import i64

from peek.request import PendingRequest
from peek.trie.keys import SYMBOL_BYTES

STEP_TOKENS: Final = 64
"""Tokens between the places at which a prompt is looked up.  With more, more prompts of one template would
end after the same place; with fewer, the search would take longer."""

PIECE_TOKENS: Final = 16
"""Tokens before a place by which prompts are looked up: enough to tell texts apart, and quick to compare."""

REACH_TOKENS: Final = 4096
"""Most tokens that a turn adds to the one before: an answer, and a tool's result or a user's question."""

MOST_NEXT: Final = 16
"""Most prompts that may continue one prompt: sub-agents do, but so do all users of a template sent alone."""

MOST_ALIKE: Final = 16
"""Most prompts that are remembered by one piece, such as a template and a few words; the newest stay."""

MOST_PROMPTS: Final = 16384
"""Most prompts that are remembered for one engine, some 450 bytes each: those of ten minutes at 27 a second.
If there are more, the piece that was used least recently is dropped with all its prompts."""

INFERRED: Final = "~"
"""Starts the name of an inferred session; the id of its first request follows."""

LONGEST_ID: Final = 128
"""Most characters of an id, a session or a namespace that are kept, see `short`."""


@final
class _End:
    """How a prompt ended: its last place, the number and hash of the bytes after it, and its session.

    `request` is a hash of the request's id.
    """

    def __init__(self, request: i64, place: i64, tail: bytes, session: str) -> None:
        self.request: i64 = request
        self.place: i64 = place
        self.size: i64 = len(tail)
        self.tail: i64 = hash(tail)
        self.session = session
        self.next: i64 = 0
        """Number of prompts that continued it."""


@final
class Continuations:
    """Remembers how prompts ended, and names the sessions of prompts that continue them.

    Args:
        unit_tokens: tokens per symbol.
        most: most prompts that are remembered.
    """

    def __init__(self, unit_tokens: i64 = 1, most: i64 = MOST_PROMPTS) -> None:
        self._most: i64 = most
        self._step: i64 = max(1, STEP_TOKENS // unit_tokens)
        self._piece: i64 = max(1, PIECE_TOKENS // unit_tokens) * SYMBOL_BYTES
        self._reach: i64 = REACH_TOKENS // unit_tokens
        self._ends: OrderedDict[bytes, list[_End]] = OrderedDict()
        """The ends of prompts, oldest first, by piece: the namespace and the symbols before the place.  So no
        namespace uses up another's `MOST_ALIKE`.  Pieces are in the order of their newest prompts."""
        self._count: i64 = 0

    def __len__(self) -> int:
        """Number of prompts that are remembered."""
        return self._count

    def session_of(self, request_id: str, key: bytes, namespace: str = "", skipped: i64 = 0) -> str:
        """Return the session of a prompt and remember how it ends.  O(REACH_TOKENS).

        Args:
            request_id: names the session if the prompt begins one.
            key: the packed prompt, or its last REACH_TOKENS + STEP_TOKENS.  Equal symbols must mean the same
                as long as the process lives.
            namespace: a prompt continues only prompts of its own namespace.
            skipped: symbols of the prompt before `key`.

        Returns:
            The session's name, unchanged for a request that was preempted and arrives again; "" for a prompt
            that is too short to be remembered.
        """
        step = self._step
        length: i64 = skipped + len(key) // SYMBOL_BYTES
        place: i64 = length // step * step
        if place < skipped + step:
            return ""
        end: i64 = (place - skipped) * SYMBOL_BYTES
        request: i64 = hash(request_id)
        space = short(namespace).encode("utf-8", "surrogatepass")
        piece = space + key[end - self._piece : end]
        tail = key[end:]
        alike = self._ends.get(piece)
        if alike is not None:
            for known in alike:
                if known.request == request and known.place == place and _fits(known, tail):
                    return known.session
        last: i64 = max(skipped + step, length - self._reach)
        session = ""
        at = place
        while at >= last and not session:
            session = self._gone_on(key, space, at, (at - skipped) * SYMBOL_BYTES)
            at -= step
        if not session:
            session = INFERRED + short(request_id)
        self._remember(piece, _End(request, place, tail, session))
        return session

    def _gone_on(self, key: bytes, space: bytes, place: i64, start: i64) -> str:
        """Return the session of a prompt that ended after `place` and that `key` continues; "" if none.

        The place is byte `start` of `key`.  Of several prompts it takes the one that the fewest have
        continued, ties by the newest, so that conversations that begin alike each keep a session.
        """
        alike = self._ends.get(space + key[start - self._piece : start])
        if alike is None:
            return ""
        best: _End | None = None
        for end in reversed(alike):
            stop: i64 = start + end.size
            open_to_more = end.place == place and end.next < MOST_NEXT and stop < len(key)
            if open_to_more and (best is None or end.next < best.next) and _fits(end, key[start:stop]):
                best = end
        if best is None:
            return ""
        best.next += 1
        return best.session

    def _remember(self, piece: bytes, end: _End) -> None:
        alike = self._ends.setdefault(piece, [])
        alike.append(end)
        self._ends.move_to_end(piece)
        if len(alike) > MOST_ALIKE:
            del alike[0]
        else:
            self._count += 1
        while self._count > self._most:
            _, gone = self._ends.popitem(last=False)
            self._count -= len(gone)


def session_of(request: PendingRequest) -> tuple[str, str]:
    """Return the key that tells a request's session from all others.  O(1)."""
    return short(request.namespace), short(request.session)


def short(name: str) -> str:
    """Return a name, or its hash if it is long, because any client can send very long names.  O(1)."""
    return name if len(name) <= LONGEST_ID else str(hash(name))


def _fits(end: _End, tail: bytes) -> bool:
    return end.size == len(tail) and end.tail == hash(tail)
