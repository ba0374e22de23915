"""What is run: sweeps over streams, policies, seeds and engines.  `quick` is for CI, `full` is the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

SEEDS = (42, 142, 242)
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
"""Engine -> whose rates, caps, and fitted constant."""
BASELINE = {"sglang": "lpm+lru", "vllm": "fcfs+lru"}
"""The paper's "stock": LPM (0.5.9) on SGLang, FCFS with prefix caching (0.19.1) on vLLM."""

STOCK = ("fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "dfs-weight+lru", "hrrn+lru", "spf+lru")
"""What a user can pick today; vLLM itself has the first only, the others are orders laid over it."""
LIMITED = ("hrrn-limit+lru",)
FULL_STACK = "clpm+gm+dl+pe"
PUBLISHED = ("fcfs+pe", "lpm+pe", "clpm", "clpm+gm", "clpm+gm+dl", "clpm+gm+pe", FULL_STACK)
MAIN = (*STOCK, "k-lpm+lru", *PUBLISHED, "peek")
SHORT = ("fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru", FULL_STACK, "peek")
UNGUARDED = ("peek, no guard",)
UNSECTIONED = ("peek, cached not first",)
EXPONENTS = tuple(f"peek, exponent {k}" for k in (1, 3, 4, 6, 8))
LANES = ("clpm, lanes by cycle", "clpm, lanes by admission", "clpm, lanes by work")

W1 = ("w1a:heavy", "w1c:moderate", "w1c:heavy", "w1d:heavy", "w1b:heavy")
W1_MODERATE = ("w1a:moderate", "w1b:moderate", "w1d:moderate")
W2 = ("w2b:moderate", "w2b:heavy")
W3 = ("w3b:heavy", "w3c:heavy", "w3b:heavy:dp2", "w3c:heavy:dp2")
W4 = tuple(map(":".join, product(("w4", "w4-shared"), ("moderate", "heavy"), ("sglang", "vllm"))))
W5 = ("w5-long:heavy", "w5-short:heavy", "w5-long:moderate", "w5-short:moderate")
W1_HEAVY = ("w1a:heavy", "w1b:heavy", "w1c:heavy", "w1d:heavy")
WINDOW = tuple(f"{cell}:window" for cell in W1_HEAVY)
ARENA_SIZES = (35, 40, 45)
ARENA = tuple(f"{cell}:arena{size}" for cell in W1_HEAVY for size in ARENA_SIZES)
RATES = tuple(f"w2b:heavy:rate{percent}" for percent in (70, 80, 90))
TRACES = tuple(map(":".join, product(("mooncake-conversation", "mooncake-synthetic"), ("0.04", "0.06"))))
TRACE_STARTS = ("mooncake-conversation:0.06:1000", "mooncake-synthetic:0.06:1000")
"""What the real engines play in minutes; prompts have 14,000 tokens in the mean."""
SESSIONS = ("agents-1:32k", "agents-4:32k")

WAIT_STREAM = "w1c:heavy"
"""Its distribution of waits is kept and drawn."""
WAIT_SHARES = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 100)
"""Per cent of the requests that were admitted sooner."""


def stock_of(engine: str) -> str:
    """The policy that the paper calls stock on an engine of this family."""
    return BASELINE[FAMILY[engine]]


def parts_of(stream: str) -> tuple[str, str, str, int]:
    """Cell or recording, load, form, and the form's number: `w1c:heavy:arena40` has form "arena" and 40."""
    kind, load, form = [*stream.split(":"), "", ""][:3]
    word = form.rstrip("0123456789")
    return kind, load, word, int(form[len(word) :] or 0)


@dataclass(frozen=True)
class Sweep:
    """Every stream under every policy and seed, on each of the engines."""

    streams: tuple[str, ...]
    policies: tuple[str, ...]
    engines: tuple[str, ...] = ALL
    seeds: tuple[int, ...] = SEEDS

    def runs(self) -> Iterator[tuple[str, str, int, str]]:
        """(engine, stream, seed, policy) of each."""
        return product(self.engines, self.streams, self.seeds, self.policies)


GUIDES = ("lpm-nolimit+lru", FULL_STACK, "peek")
QUICK = (
    Sweep(W1[:4], ("fcfs+lru", "hrrn+lru", "clpm", *GUIDES), SIMULATED, (42,)),
    Sweep(("w5-short:heavy",), ("fcfs+lru", "peek"), SIMULATED, (42,)),
    Sweep(("w1a:heavy", "w1c:heavy"), GUIDES, REAL, (42,)),
    Sweep(("w1a:heavy",), ("fcfs+lru",), REAL, (42,)),
)

FULL = (  # what matters most first: a run that is cut short has the most of it
    Sweep(W1, (*MAIN, "peek, no gate"), ("sglang", "simulated-radix")),
    Sweep(W1, LIMITED, ("sglang",)),
    Sweep(W1, MAIN, ("vllm", "simulated-blocks")),
    Sweep(W1, ("peek, no lanes",)),
    Sweep(W1[:4], LANES),
    Sweep(W1, EXPONENTS, SIMULATED),
    Sweep(WINDOW, SHORT),
    Sweep(ARENA, ("fcfs+lru", "lpm+lru", FULL_STACK), SIMULATED),
    Sweep(RATES, ("fcfs+lru", "lpm+lru", FULL_STACK), SIMULATED),
    Sweep(W5, SHORT),
    Sweep(W4, SHORT),
    Sweep(W3, SHORT),
    Sweep(W2, SHORT),
    Sweep(W1_MODERATE, SHORT),
    Sweep(SESSIONS, SHORT),
    Sweep((*TRACE_STARTS, "azure-code:1.0"), SHORT, seeds=(0,)),
    Sweep(TRACES, SHORT, SIMULATED, (0,)),
    Sweep(("w4:heavy:vllm", "w5-short:heavy"), UNGUARDED, SIMULATED),
    Sweep(("w4-shared:heavy:vllm", "w1c:heavy"), UNSECTIONED, SIMULATED),
    Sweep(("azure-code:1.0",), UNGUARDED, SIMULATED, (0,)),
)

PLANS = {"quick": QUICK, "full": FULL}
