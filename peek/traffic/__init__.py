"""Recorded traffic: logs of requests in, rows of a block-hash trace out.  Opens no file.

A `Reader` gives each line to the format that knows it.  A `Tracer` makes rows in Mooncake's format of the
events.  `wrapped` takes off what a container runtime put around a line; `rows` and `engines` read the rest.
"""

from peek.traffic.engines import CUT, Facts
from peek.traffic.events import Arrival, Ending, Event, Measured
from peek.traffic.reader import FORMATS, Reader
from peek.traffic.rows import RequestRows
from peek.traffic.times import UNITS, bare_unit, doubt, seconds
from peek.traffic.tracer import BLOCK_TOKENS, Counts, Tracer

__all__ = [
    "BLOCK_TOKENS",
    "CUT",
    "FORMATS",
    "UNITS",
    "Arrival",
    "Counts",
    "Ending",
    "Event",
    "Facts",
    "Measured",
    "Reader",
    "RequestRows",
    "Tracer",
    "bare_unit",
    "doubt",
    "seconds",
]
