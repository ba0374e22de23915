"""Sessions of requests that name none: a prompt that goes on from an earlier one is the session's next turn.

The next turn of a conversation, or of an agent, sends the whole prompt of the turn before, its answer, and
something new.  `Continuations` remembers how prompts ended.  A prompt that has the same end at the same
place, and goes on behind it, belongs to the earlier one's session.  To find it, a few symbols are compared at
each `STEP_TOKENS` of the prompt's last `REACH_TOKENS`, where an earlier prompt can have ended.

Only an end is compared, not what is before it.  So two prompts that differ there may be taken for turns of
one session, and a client can make up a prompt that is.  It gains what naming a session gains.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from peek.trie.keys import SYMBOL_BYTES

STEP_TOKENS: Final = 64
"""Tokens between the places at which a prompt is looked up.  More would make more prompts of a template end
behind the same place, fewer would make the search longer."""

PIECE_TOKENS: Final = 16
"""Tokens before a place by which prompts are looked up: enough to tell texts apart, and soon compared."""

REACH_TOKENS: Final = 4096
"""Most tokens that a turn adds to the one before: an answer, and a tool's result or a user's question."""

MOST_NEXT: Final = 16
"""Most prompts that go on from one.  Sub-agents do; where a template was sent alone, all who use it do."""

MOST_ALIKE: Final = 16
"""Most prompts that are remembered by one piece, as those of a template and a few words; the newest stay."""

MOST_PROMPTS: Final = 65536
"""Most prompts that are remembered, the newest half less `MOST_ALIKE` at least; some 500 bytes a prompt."""

INFERRED: Final = "~"
"""Starts the name of an inferred session; the id of its first request follows."""

LONGEST_ID: Final = 128
"""Most characters of an id in a name: names are kept, and any client can send long ids.  Of one that is
longer, the hash follows."""


@final
class _End:
    """How a prompt ended: its last place, its symbols behind that, and its session.

    `request` is a hash of the request's id and symbols.
    """

    __slots__ = ("next", "place", "request", "session", "tail")

    def __init__(self, request: int, place: i64, tail: bytes, session: str) -> None:
        self.request = request
        self.place: i64 = place
        self.tail = tail
        self.session = session
        self.next: i64 = 0
        """Prompts that went on from it."""


@final
class Continuations:
    """Remembers how prompts ended, and names the sessions of prompts that go on from them.

    Args:
        unit_tokens: tokens per symbol.
    """

    __slots__ = ("_most", "_new", "_newer", "_old", "_older", "_piece", "_reach", "_step")

    def __init__(self, unit_tokens: i64 = 1) -> None:
        self._step: i64 = max(1, STEP_TOKENS // unit_tokens)
        self._piece: i64 = max(1, PIECE_TOKENS // unit_tokens) * SYMBOL_BYTES
        self._reach: i64 = REACH_TOKENS // unit_tokens
        self._most: i64 = MOST_PROMPTS // 2
        self._newer: dict[tuple[str, bytes], list[_End]] = {}
        """By namespace, whose `MOST_ALIKE` no other one takes up, and the symbols before the place."""
        self._older: dict[tuple[str, bytes], list[_End]] = {}
        self._new: i64 = 0
        """Number of prompts in `_newer`."""
        self._old: i64 = 0

    def __len__(self) -> int:
        """Number of prompts that are remembered."""
        return self._new + self._old

    def session_of(self, request_id: str, key: bytes, namespace: str = "", skipped: i64 = 0) -> str:
        """Return the session of a prompt and remember how it ends.  O(REACH_TOKENS).

        Args:
            request_id: names the session if the prompt begins one.
            key: the packed prompt, or its last REACH_TOKENS + STEP_TOKENS.  Equal symbols must mean the same
                as long as the process lives.
            namespace: a prompt goes on from none of another namespace.
            skipped: symbols of the prompt before `key`.

        Returns:
            The session's name, the same one again for a request that was preempted and arrives again; "" for
            a prompt that is too short to be remembered.
        """
        step = self._step
        length: i64 = skipped + len(key) // SYMBOL_BYTES
        place: i64 = length // step * step
        if place < skipped + step:
            return ""
        end: i64 = (place - skipped) * SYMBOL_BYTES
        request = hash((request_id, key[max(0, end - self._reach * SYMBOL_BYTES) :]))
        piece = (namespace, key[end - self._piece : end])
        tail = key[end:]
        for known in self._ends(piece):
            if known.request == request and known.place == place and known.tail == tail:
                return known.session
        last: i64 = max(skipped + step, length - self._reach)
        session = ""
        at = place
        while at >= last and not session:
            session = self._gone_on(key, namespace, at, (at - skipped) * SYMBOL_BYTES)
            at -= step
        if not session:
            session = INFERRED + (request_id if len(request_id) <= LONGEST_ID else str(hash(request_id)))
        self._remember(piece, _End(request, place, tail, session))
        return session

    def _ends(self, piece: tuple[str, bytes]) -> list[_End]:
        ends = self._newer.get(piece)
        if ends is None:
            ends = self._older.get(piece)
        return [] if ends is None else ends

    def _gone_on(self, key: bytes, namespace: str, place: i64, start: i64) -> str:
        """Return the session of a prompt that ended behind a place and that `key` goes on from; "" if none.

        The place is byte `start` of `key`.  Of several prompts it is one from which the fewest have gone on,
        and of these the newest: conversations that begin with the same words each keep a session.
        """
        best: _End | None = None
        for end in self._ends((namespace, key[start - self._piece : start])):
            stop: i64 = start + len(end.tail)
            fits = end.place == place and end.next < MOST_NEXT
            goes_on = fits and stop < len(key) and key[start:stop] == end.tail
            if goes_on and (best is None or end.next <= best.next):
                best = end
        if best is None:
            return ""
        best.next += 1
        return best.session

    def _remember(self, piece: tuple[str, bytes], end: _End) -> None:
        if self._new > self._most - MOST_ALIKE:  # so many may come over with the piece
            self._older, self._old = self._newer, self._new
            self._newer, self._new = {}, 0
        ends = self._newer.get(piece)
        if ends is None:
            ends = self._older.pop(piece, [])
            self._newer[piece] = ends
            self._old -= len(ends)
            self._new += len(ends)
        if len(ends) == MOST_ALIKE:
            del ends[0]
        else:
            self._new += 1
        ends.append(end)
