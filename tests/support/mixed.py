"""A mixed burst for a server: text, structured output, salts, images, duplicates, and bad requests."""

from __future__ import annotations

import random
from dataclasses import dataclass

PAD = 999
"""The token that stands for an image."""

KINDS = (*["text"] * 4, *["structured"] * 2, *["salted"] * 2, *["image"] * 2, "twin", "again")
"""Of those that are to be served: a twin has the prompt of another, and who comes again its id, too."""

BAD = ("spoilt", "toolong")
"""Of an id that no adapter, and of a length that no server takes."""


@dataclass(frozen=True)
class Asked:
    """One request.  Its id is its kind and its place in the burst, such as `salted17`."""

    kind: str
    place: int
    rid: str
    tokens: tuple[int, ...]


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
        elif kind in BAD:
            prompt = tokens(4000 if kind == "toolong" else 64)
        rid = f"{kind}{place}"
        model = next((old for old in reversed(made) if old.kind == "text"), None)
        if kind in ("twin", "again") and model is not None:
            prompt, rid = list(model.tokens), model.rid if kind == "again" else rid
        made.append(Asked(kind, place, rid, tuple(prompt)))
    return made
