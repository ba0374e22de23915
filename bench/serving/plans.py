"""What is run: batches of streams, policies, seeds and engines.  `quick` is for CI, `full` is the report."""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = (42, 142, 242)
SIMULATED = ("simulated-radix", "simulated-blocks")
REAL = ("sglang", "vllm")
ALL = (*REAL, *SIMULATED)

STOCK = ("fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "dfs-weight+lru", "hrrn+lru", "spf+lru")
"""What a user can pick today; vLLM itself has the first only, the others are orders laid over it."""
LIMITED = ("hrrn-limit+lru",)
PUBLISHED = ("fcfs+pe", "lpm+pe", "clpm", "clpm+gm", "clpm+gm+dl", "clpm+gm+pe", "clpm+gm+dl+pe")
MAIN = (*STOCK, "k-lpm+lru", *PUBLISHED, "peek")
SHORT = ("fcfs+lru", "lpm+lru", "lpm-nolimit+lru", "hrrn+lru", "spf+lru", "clpm+gm+dl+pe", "peek")
UNGUARDED = ("peek, no guard",)
UNSECTIONED = ("peek, cached not first",)
EXPONENTS = tuple(f"peek, exponent {k}" for k in (1, 3, 4, 6, 8))
LANES = ("clpm, lanes by cycle", "clpm, lanes by admission", "clpm, lanes by work")

W1 = ("w1a:heavy", "w1c:moderate", "w1c:heavy", "w1d:heavy", "w1b:heavy")
W1_MODERATE = ("w1a:moderate", "w1b:moderate", "w1d:moderate")
W2 = ("w2b:moderate", "w2b:heavy")
W3 = ("w3b:heavy", "w3c:heavy", "w3b:heavy:dp2", "w3c:heavy:dp2")
W4 = tuple(
    f"{cell}:{load}:{form}"
    for cell in ("w4", "w4-shared")
    for load in ("moderate", "heavy")
    for form in ("sglang", "vllm")
)
W5 = ("w5-long:heavy", "w5-short:heavy", "w5-long:moderate", "w5-short:moderate")
WINDOW = ("w1a:heavy:window", "w1b:heavy:window", "w1c:heavy:window", "w1d:heavy:window")
ARENA = tuple(f"w1{cell}:heavy:arena{size}" for cell in "abcd" for size in (35, 40, 45))
RATES = tuple(f"w2b:heavy:rate{percent}" for percent in (70, 80, 90))
TRACES = (
    "mooncake-conversation:0.04",
    "mooncake-conversation:0.06",
    "mooncake-synthetic:0.04",
    "mooncake-synthetic:0.06",
)
TRACE_STARTS = ("mooncake-conversation:0.06:1000", "mooncake-synthetic:0.06:1000")
"""What the real engines play in minutes; prompts have 14,000 tokens in the mean."""
SESSIONS = ("agents-1:32k", "agents-4:32k")


@dataclass(frozen=True)
class Batch:
    """Every stream under every policy and seed, on each of the engines."""

    streams: tuple[str, ...]
    policies: tuple[str, ...]
    engines: tuple[str, ...] = ALL
    seeds: tuple[int, ...] = SEEDS


QUICK = (
    Batch(
        ("w1a:heavy", "w1c:moderate", "w1c:heavy", "w1d:heavy"),
        ("fcfs+lru", "lpm-nolimit+lru", "hrrn+lru", "clpm", "clpm+gm+dl+pe", "peek"),
        SIMULATED,
        seeds=(42,),
    ),
    Batch(("w5-short:heavy",), ("fcfs+lru", "peek"), SIMULATED, (42,)),
    Batch(("w1a:heavy", "w1c:heavy"), ("lpm-nolimit+lru", "clpm+gm+dl+pe", "peek"), REAL, (42,)),
    Batch(("w1a:heavy",), ("fcfs+lru",), REAL, (42,)),
)

FULL = (  # what matters most first: a run that is cut short has the most of it
    Batch(W1, (*MAIN, "peek, no gate"), ("sglang", "simulated-radix")),
    Batch(W1, LIMITED, ("sglang",)),
    Batch(W1, MAIN, ("vllm", "simulated-blocks")),
    Batch(W1, ("peek, no lanes",)),
    Batch(("w1a:heavy", "w1c:moderate", "w1c:heavy", "w1d:heavy"), LANES),
    Batch(W1, EXPONENTS, SIMULATED),
    Batch(WINDOW, SHORT),
    Batch(ARENA, ("fcfs+lru", "lpm+lru", "clpm+gm+dl+pe"), SIMULATED),
    Batch(RATES, ("fcfs+lru", "lpm+lru", "clpm+gm+dl+pe"), SIMULATED),
    Batch(W5, SHORT),
    Batch(W4, SHORT),
    Batch(W3, SHORT),
    Batch(W2, SHORT),
    Batch(W1_MODERATE, SHORT),
    Batch(SESSIONS, SHORT),
    Batch((*TRACE_STARTS, "azure-code:1.0"), SHORT, seeds=(0,)),
    Batch(TRACES, SHORT, SIMULATED, (0,)),
    Batch(("w4:heavy:vllm", "w5-short:heavy"), UNGUARDED, SIMULATED),
    Batch(("w4-shared:heavy:vllm", "w1c:heavy"), UNSECTIONED, SIMULATED),
    Batch(("azure-code:1.0",), UNGUARDED, SIMULATED, (0,)),
)

PLANS = {"quick": QUICK, "full": FULL}
