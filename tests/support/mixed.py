"""A mixed burst for a server: text, structured output, salted, images, twins, and bad ones among them."""

from __future__ import annotations

import random
from dataclasses import dataclass

PAD = 999
"""The token that stands for an image."""

KINDS = ("text", "text", "text", "structured", "salted", "image", "twin")
"""Of those that are to be served, in turns at random."""

BAD = ("spoilt", "toolong")


@dataclass(frozen=True)
class Asked:
    """One request.  Its id is its kind and its place in the burst, such as `salted17`."""

    kind: str
    place: int
    tokens: tuple[int, ...]

    @property
    def rid(self) -> str:
        return f"{self.kind}{self.place}"


def burst(requests: int, bad_share: float = 0.1, families: int = 12) -> list[Asked]:
    """Requests in order of arrival.  Bad ones share nothing with anybody, so no order may change by them."""
    rnd = random.Random(requests)

    def tokens(count: int) -> list[int]:
        return [rnd.randrange(300, PAD) for _ in range(count)]

    shared = [tokens(96) for _ in range(families)]
    made: list[Asked] = []
    for place in range(requests):
        kind = rnd.choice(BAD) if rnd.random() < bad_share else rnd.choice(KINDS)
        prompt = [*rnd.choice(shared), *tokens(8)]
        if kind == "image":
            prompt[32:64] = [PAD] * 32
        elif kind == "twin" and made:
            prompt = list(next((old.tokens for old in reversed(made) if old.kind == "text"), prompt))
        elif kind in BAD:
            prompt = tokens(4000 if kind == "toolong" else 64)
        made.append(Asked(kind, place, tuple(prompt)))
    return made
