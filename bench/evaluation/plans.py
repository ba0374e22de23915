"""The runs of the evaluation: sweeps over streams, policies, seeds and engines; `quick` for CI, `full`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

SEEDS = (42, 142, 242)
"""The paper's seeds, for what is compared with its figures."""
FRESH = (611, 6121, 61121)
"""Seeds of every comparison with `peek`.  Nothing is ever tuned on them."""
ONCE = FRESH[:1]
"""Seeds where many streams stand side by side, or a simulated twin plays all of `FRESH`."""
SIMULATED = ("simulated-radix", "simulated-blocks")
REAL = ("sglang", "vllm")
ALL = (*REAL, *SIMULATED)
NAMES = {
    "sglang": "SGLang",
    "vllm": "vLLM",
    "simulated-radix": "simulated, radix",
    "simulated-blocks": "simulated, blocks",
}
FAMILY = {"simulated-radix": "sglang", "sglang": "sglang", "simulated-blocks": "vllm", "vllm": "vllm"}
"""By engine: the family whose rates, caps and fitted constants it has."""
BASELINE = {"sglang": "lpm+lru", "vllm": "fcfs+lru"}
"""The paper's "stock": LPM (0.5.9) on SGLang, FCFS with prefix caching (0.19.1) on vLLM.

Only for comparison with the paper's figures: SGLang itself runs LPM on request only.
"""
DEFAULT = "fcfs+lru"
"""Both engines' default: arrival order, with prefix caching."""

STOCK = ("fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "dfs-weight+lru", "hrrn+lru", "spf+lru")
"""Orders that a user can pick today; vLLM itself has the first only, the others are laid over it."""
LIMITED = ("hrrn-limit+lru",)
STOCKS = (*STOCK, *LIMITED)
FULL_STACK = "clpm+gm+dl+pe"
PUBLISHED = ("fcfs+pe", "lpm+pe", "clpm", "clpm+gm", "clpm+gm+dl", "clpm+gm+pe", FULL_STACK)
SHORT = ("fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru", FULL_STACK, "peek")
LADDER = ("fcfs+lru", "lpm+lru", "lpm-nolimit+lru", FULL_STACK, "peek")
"""Policies of the curves over the load."""
OFFLINE = ("fcfs+lru", "lpm-nolimit+lru", "fcfs+pe", "fcfs+lru, reordered", "fcfs+pe, reordered", "peek")
"""Arrival order, the best stock order, eviction only, reordering only, both; and `peek` online."""
POLICIES = (*STOCKS, "k-lpm+lru", *PUBLISHED, "peek", *OFFLINE[3:5])
"""All policies, in the order of the tables."""

W1_HEAVY = ("w1a:heavy", "w1b:heavy", "w1c:heavy", "w1d:heavy")
WINDOW = tuple(f"{cell}:window" for cell in W1_HEAVY)
PAPER_W1 = {"sglang": tuple(f"{cell}:window450" for cell in W1_HEAVY), "vllm": WINDOW}
"""Streams that are compared with the paper's heavy W1 cells.

Its E2E times throughput gives the outstanding requests of its clients: on vLLM 164 to 172 in each cell, near
its stated cap of 210; on SGLang 338 to 415 under stock, above its stated cap of 256.  450 was chosen there
among 350 to 512, by TTFT and E2E of these four cells on the simulated twin.
"""
W1_MODERATE = ("w1a:moderate", "w1b:moderate", "w1c:moderate", "w1d:moderate")
W2 = ("w2b:moderate", "w2b:heavy")
W3 = ("w3b:heavy", "w3c:heavy", "w3b:heavy:dp2", "w3c:heavy:dp2")
W4 = tuple(map(":".join, product(("w4", "w4-shared"), ("moderate", "heavy"), ("sglang", "vllm"))))
W4_HEAVY = {engine: tuple(f"{cell}:heavy:{engine}" for cell in ("w4", "w4-shared")) for engine in REAL}
"""At the rates of the paper's runs on that engine."""
W5 = ("w5-long:heavy", "w5-short:heavy", "w5-long:moderate", "w5-short:moderate")
W5_WINDOW = tuple(f"{stream}:window" for stream in W5[:2])
"""Streams that are compared with the paper's W5: its E2E times throughput is near its cap, too."""
COLD = tuple(f"cold-behind-hot:new:arena{size}" for size in (100, 200, 400))
AGENTS = tuple(f"agents-with-tools:new:arena{size}" for size in (100, 200, 400))
FLOODS = ("flood-one-prefix:new", "flood-four-prefixes:new", "flood-small-groups:new")
NAMED = "named"
"""The load of a stream whose requests name their tenant."""
FLOODS_NAMED = tuple(stream.replace("new", NAMED) for stream in FLOODS)
TENANTS = tuple(f"tenants:{NAMED}:arena{size}" for size in (100, 200))
LIVE = tuple(f"live:new:arena{size}" for size in (100, 200))
NEW = (*COLD, *AGENTS, *LIVE, *TENANTS, *FLOODS)
TRACES = tuple(map(":".join, product(("mooncake-conversation", "mooncake-synthetic"), ("0.04", "0.06"))))
TRACE_STARTS = ("mooncake-conversation:0.06:1000", "mooncake-synthetic:0.06:1000")
"""What the real engines play in minutes; prompts have 14,000 tokens in the mean."""
SESSIONS = ("agents-1:32k", "agents-4:32k")
RECORDED = (*SESSIONS, *TRACE_STARTS, *TRACES, "azure-code:1.0")

MAP_LOADS, MAP_ARENAS = (60, 80, 95, 120, 160), (50, 100, 200, 400)
MAP = tuple(f"map:{load}:arena{size}" for load, size in product(MAP_LOADS, MAP_ARENAS))
FLASH = tuple(f"map:flash:arena{size}" for size in MAP_ARENAS)
RATES = (40, 60, 80)
"""Per cent of a cell's heavy rate; the cell itself is 100."""
CURVES = ("w1a", "w1c", "w1d", "w2b", "w5-long", "w5-short")
OVER_LOAD = {
    **{cell: (*(f"{cell}:heavy:rate{rate}" for rate in RATES), f"{cell}:heavy") for cell in CURVES},
    "w3c": (*(f"w3c:heavy:clients{count}" for count in (45, 90)), "w3c:heavy"),
}
"""By curve: its streams, the lightest first.  W3 is a closed loop, so its load is its number of clients."""
BATCHES = {
    "prefix": (512, 1024, 2048, 4096),
    "groups": (20, 50, 100, 200),
    "jobs": (16, 64, 128, 256),
    "sigma": (0, 20, 40, 60),
}
"""The paper's sweeps of a batch that is known beforehand, by what is changed."""
BATCH_SWEEPS = {
    name: tuple(f"batch:offline:{what}{value}" for value in BATCHES[what])
    for what, name in {
        "prefix": "prefixes of 512 to 4,096 tokens",
        "groups": "20 to 200 prefixes",
        "jobs": "16 to 256 at a time",
        "sigma": "spread of lengths 0 to 60 %",
    }.items()
}
"""The streams of each sweep."""
BATCH = tuple(stream for streams in BATCH_SWEEPS.values() for stream in streams)
CONTROL = ("batch:offline:prefix0",)
"""A batch without shared prefixes."""

SHARED = (*W1_HEAVY, *WINDOW, *W1_MODERATE, *W2, *W3)
QUIET = (*W4, *W5, *NEW, *FLOODS_NAMED, *RECORDED)
HEADLINE = (*SHARED, *QUIET)
"""Every stream by which `peek` is judged."""


def stock_of(engine: str) -> str:
    """Return the policy that the paper calls stock on an engine of this family."""
    return BASELINE[FAMILY[engine]]


def parts_of(stream: str) -> tuple[str, str, str, int]:
    """Return cell or recording, load, form, and the form's number: "arena" and 40 for `w1c:heavy:arena40`."""
    kind, load, form = [*stream.split(":"), "", ""][:3]
    word = form.rstrip("0123456789")
    return kind, load, word, int(form[len(word) :] or 0)


@dataclass(frozen=True)
class Sweep:
    """Every stream under every policy and seed, on each of the engines."""

    streams: tuple[str, ...]
    policies: tuple[str, ...]
    engines: tuple[str, ...] = ALL
    seeds: tuple[int, ...] = FRESH

    def runs(self) -> Iterator[tuple[str, str, int, str]]:
        """Yield (engine, stream, seed, policy) of each run."""
        return product(self.engines, self.streams, self.seeds, self.policies)


def of_paper(engine: str, streams: tuple[str, ...], *more: str) -> Sweep:
    """Return the runs that are compared with the paper's figures on one engine."""
    return Sweep(streams, (stock_of(engine), FULL_STACK, *more), (engine,), SEEDS)


GUARDED = ("fcfs+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru", "clpm", FULL_STACK, "peek")
"""Policies that a check must be able to tell from `peek`."""
GUARDED_STREAMS = (*W1_HEAVY, "w1c:moderate", "w1a:heavy:window")
QUICK = (  # a part of `FULL`: the reference of CI is taken from the stored runs
    Sweep(GUARDED_STREAMS, GUARDED, SIMULATED, ONCE),
    Sweep((COLD[0], TENANTS[0], "w5-short:heavy"), ("fcfs+lru", "lpm-nolimit+lru", "peek"), SIMULATED, ONCE),
    Sweep(("w1a:heavy", "w1c:heavy"), ("lpm-nolimit+lru", FULL_STACK, "peek"), REAL, ONCE),
)
LATTICE = ("clpm", "clpm+gm", "clpm+gm+dl", "clpm+gm+pe")
FULL = (  # what matters most comes first, for a run that is cut short
    of_paper("sglang", PAPER_W1["sglang"], "lpm+pe", *LATTICE),
    of_paper("vllm", PAPER_W1["vllm"], "fcfs+pe", *LATTICE),
    Sweep((*W1_HEAVY, *WINDOW, "w1c:moderate"), SHORT, REAL, ONCE),
    Sweep((*SHARED, *W4, *W5, *NEW, *SESSIONS), SHORT, SIMULATED),
    Sweep(MAP, SHORT, SIMULATED, ONCE),
    Sweep(FLASH, ("fcfs+lru",), SIMULATED, ONCE),
    Sweep((COLD[0], AGENTS[1], LIVE[0], *FLOODS[:2]), SHORT, REAL, ONCE),
    Sweep(FLOODS_NAMED, ("fcfs+lru", "lpm-nolimit+lru", "peek"), SIMULATED, ONCE),
    Sweep((*W5[:2], *W4_HEAVY["sglang"]), SHORT, ("sglang",), ONCE),
    Sweep((*W5[:2], *W4_HEAVY["vllm"]), SHORT, ("vllm",), ONCE),
    Sweep((*BATCH, *CONTROL), OFFLINE, SIMULATED, ONCE),
    Sweep(tuple(stream for curve in OVER_LOAD.values() for stream in curve), LADDER, SIMULATED, ONCE),
    Sweep((*W3, W2[0]), SHORT, REAL, ONCE),
    Sweep(W1_HEAVY, ("dfs-weight+lru", "k-lpm+lru", *LIMITED), ("sglang",), ONCE),
    Sweep(SESSIONS, SHORT, REAL, ONCE),
    Sweep((*TRACE_STARTS, "azure-code:1.0"), SHORT, seeds=(0,)),
    Sweep(TRACES, SHORT, SIMULATED, (0,)),
    of_paper("simulated-radix", (*W2, *W3, *W5_WINDOW, *W4_HEAVY["sglang"])),
    of_paper("simulated-blocks", (*W2, *W3, *W5_WINDOW, *W4_HEAVY["vllm"])),
    Sweep(GUARDED_STREAMS, GUARDED, SIMULATED),
)

PLANS = {"quick": QUICK, "full": FULL}
GIVES_UP = [
    ("sglang", stream, "spf+lru") for stream in (AGENTS[1], *SESSIONS, TRACE_STARTS[0], "azure-code:1.0")
]
"""Runs in which an engine ends with an error: out of memory for the batch that it chose."""


def runs_of(plan: Iterable[Sweep]) -> list[tuple[str, str, int, str]]:
    """Return (engine, stream, seed, policy) of a plan, in its order, each once, without `GIVES_UP`."""
    runs = dict.fromkeys(run for sweep in plan for run in sweep.runs())
    return [run for run in runs if (run[0], run[1], run[3]) not in GIVES_UP]
