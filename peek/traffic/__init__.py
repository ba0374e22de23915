"""Recorded traffic: turns logs of requests into rows of a block-hash trace, without opening a file.

A `Reader` gives each line to the format that it has.  A `Tracer` turns the events into rows in Mooncake's
format.  `wrapped` removes what a container runtime puts around a line; `rows` and `engines` read the rest.
"""

from peek.traffic.events import Arrival as Arrival
from peek.traffic.events import Ending as Ending
from peek.traffic.events import Event as Event
from peek.traffic.events import Measured as Measured
from peek.traffic.reader import Reader as Reader
from peek.traffic.rows import RequestRows as RequestRows
from peek.traffic.times import UNITS as UNITS
from peek.traffic.tracer import BLOCK_TOKENS as BLOCK_TOKENS
from peek.traffic.tracer import Counts as Counts
from peek.traffic.tracer import Tracer as Tracer
