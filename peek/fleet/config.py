"""Settings of a fleet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from peek.config import PeekConfig
from peek.settings import require_whole, require_within

_MOST: Final = 2**40


@dataclass(frozen=True)
class FleetConfig:
    """Settings of one `FleetPlanner`.

    Attributes:
        order: orders the requests that wait for one replica.
        unit_tokens: tokens per symbol of all keys.
        stickiness: upper bound of the weight of a token to compute: 1.0 at an idle replica, more with each
            request there that would wait for it.
        seats: requests that a replica computes at once; 0: not known.  A replica without a free seat gets no
            new request while another one has a seat.
        window_requests: while fewer requests than this queue at a replica, it is also sent requests of which
            it holds less than half.  With few, the next request and its replica stay open (late binding, for
            hosts that report first tokens).  With as many as `warm_requests`, each goes to its home at once.
        window_tokens: while fewer uncached tokens than this queue there, up to `warm_requests` may queue.
        warm_requests: most requests that may queue there.
        news_s: seconds until the fleet hears that a replica has computed a prompt.  `window_tokens` grows by
            the tokens computed in that time, `warm_requests` by its own number for each second.
        tokens_per_s: prompt tokens per second of a replica of speed 1.0; used with `news_s`.
        max_waiting: most requests that wait in the fleet; one more is refused.
        asked_whole: most replicas of a fleet in which every request looks for its home at all of them; in a
            larger fleet it looks at a few (`peek.fleet.placement`).
    """

    order: PeekConfig = field(default_factory=PeekConfig)
    unit_tokens: int = 1
    stickiness: float = 4.0
    seats: int = 0
    window_requests: int = 2
    window_tokens: int = 512
    warm_requests: int = 1024
    news_s: float = 0.0
    tokens_per_s: float = 6000.0
    max_waiting: int = 100_000
    asked_whole: int = 16

    def __post_init__(self) -> None:
        require_whole("unit_tokens", self.unit_tokens, 1, 2**31 - 1)
        require_within("stickiness", self.stickiness, 1.0, 1e6)
        require_whole("seats", self.seats, 0, _MOST)
        require_whole("window_tokens", self.window_tokens, 0, _MOST)
        require_whole("window_requests", self.window_requests, 1, _MOST)
        require_whole("warm_requests", self.warm_requests, self.window_requests, _MOST)
        require_within("news_s", self.news_s, 0.0, 3600.0)
        require_within("tokens_per_s", self.tokens_per_s, 0.0, _MOST)
        require_whole("max_waiting", self.max_waiting, 1, _MOST)
        require_whole("asked_whole", self.asked_whole, 0, _MOST)
