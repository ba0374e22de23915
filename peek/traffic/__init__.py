"""Recorded traffic: logs of requests in, rows of a block-hash trace out.  Opens no file.

A `Reader` gives each line to the format that knows it.  A `Tracer` makes rows in Mooncake's format of the
events.  `wrapped` takes off what a container runtime put around a line; `rows` and `engines` read the rest.
"""

from peek.traffic.engines import CUT as CUT
from peek.traffic.engines import Facts as Facts
from peek.traffic.events import Arrival as Arrival
from peek.traffic.events import Ending as Ending
from peek.traffic.events import Event as Event
from peek.traffic.events import Measured as Measured
from peek.traffic.reader import FORMATS as FORMATS
from peek.traffic.reader import Reader as Reader
from peek.traffic.rows import RequestRows as RequestRows
from peek.traffic.times import UNITS as UNITS
from peek.traffic.times import bare_unit as bare_unit
from peek.traffic.times import doubt as doubt
from peek.traffic.times import seconds as seconds
from peek.traffic.tracer import BLOCK_TOKENS as BLOCK_TOKENS
from peek.traffic.tracer import Counts as Counts
from peek.traffic.tracer import Tracer as Tracer
