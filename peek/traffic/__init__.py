"""Recorded traffic: turns logs of requests into rows of a block-hash trace, without opening a file.

A `Reader` gives each line to the format that knows it.  A `Tracer` turns the events into rows in Mooncake's
format.  `wrapped` removes what a container runtime puts around a line; `rows` and `engines` read the rest.
"""

from peek.traffic.engines import CUT
from peek.traffic.events import Arrival, Ending, Event, Measured
from peek.traffic.reader import Reader
from peek.traffic.rows import RequestRows
from peek.traffic.times import UNITS, bare_unit, doubt, seconds
from peek.traffic.tracer import BLOCK_TOKENS, Counts, Tracer

__all__ = [
    "BLOCK_TOKENS", "CUT", "UNITS", "Arrival", "Counts", "Ending", "Event", "Measured", "Reader",
    "RequestRows", "Tracer", "bare_unit", "doubt", "seconds",
]  # fmt: skip
