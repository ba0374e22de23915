"""How long one engine step takes: a roofline with named hardware and model parameters.

    step = overhead + max(weights / bandwidth, flops / (peak x mfu)) + kv_read / bandwidth

- weights: every step reads all parameters once, 2 bytes each.
- flops: 2 x parameters per computed token, plus attention of every computed token to its context,
  4 x layers x heads x head_dim per (token, context token) pair, halved within a chunk by causality.
- kv_read: decoding reads each running request's KV once a step, 2 x layers x kv_heads x head_dim x 2
  bytes a token.

Hardware figures are the vendor's data sheet (H100 SXM: 989 TFLOP/s dense bf16, 3.35 TB/s HBM3; NVLink
traffic of tensor parallelism is in the efficiency, not modelled apart).  Model figures are the
published `config.json`s.  `mfu`, the part of peak that prefill reaches, is the one free constant: 0.40,
which puts one prefill token of Qwen2.5-32B at 0.165 ms; it is not tuned per cell (docs/simulator.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from peek.errors import WorkloadError

BYTES_PER_VALUE: Final = 2
"""bf16."""


class StepTimes(Protocol):
    """Whatever tells how long a step takes."""

    def step_s(self, computed_tokens: int, attention_pairs: float, kv_tokens: int) -> float:
        """Seconds for one step; see `CostModel.step_s`."""
        ...


@dataclass(frozen=True, slots=True)
class Hardware:
    """One replica's accelerators taken together.

    Attributes:
        flops: dense bf16 peak, FLOP/s.
        bandwidth: memory bandwidth, bytes/s.
        memory_gib: memory that the driver reports, GiB.
        mfu: part of `flops` that prefill reaches.
        overhead_s: launch and scheduling time per step, seconds.
    """

    name: str
    flops: float
    bandwidth: float
    memory_gib: float
    mfu: float = 0.40
    overhead_s: float = 0.0015


@dataclass(frozen=True, slots=True)
class Model:
    """What of a transformer decides its step time."""

    name: str
    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV cache a token takes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_VALUE


H100 = Hardware("H100-SXM-80GB", 989e12, 3.35e12, 79.6)
H100_TP2 = Hardware("2xH100-SXM-80GB TP=2", 2 * 989e12, 2 * 3.35e12, 2 * 79.6)

QWEN25_32B = Model("Qwen2.5-32B", 32.8e9, 64, 40, 8, 128)
LLAMA31_70B = Model("Llama-3.1-70B", 70.6e9, 80, 64, 8, 128)
MISTRAL_24B = Model("Mistral-Small-24B", 23.6e9, 40, 32, 8, 128)
GEMMA2_27B = Model("Gemma-2-27B", 27.2e9, 46, 32, 16, 128)


UTILISATION: Final = 0.88
"""Part of the card that weights and KV cache may fill.

SGLang's `mem_fraction_static` as the paper sets it.  vLLM's 0.9 gives 1.6 GiB a card more, which its
activation peak takes again.
"""


def arena_tokens(
    hardware: Hardware, model: Model, utilisation: float = UTILISATION, overhead_gib: float = 0.0
) -> int:
    """Tokens of KV cache that a card leaves, in whole thousands.

        (memory x utilisation - weights - overhead) / KV bytes of a token

    Args:
        overhead_gib: what else is taken of the share: captured graphs, a draft model, LoRA slots.

    Raises:
        WorkloadError: the weights alone do not fit.
    """
    free = (hardware.memory_gib * utilisation - overhead_gib) * 2**30 - model.parameters * BYTES_PER_VALUE
    if free < 1000 * model.kv_bytes:
        raise WorkloadError(
            f"{model.name} does not fit {hardware.name} at {utilisation:g} of {hardware.memory_gib:g} GiB"
        )
    return int(free / model.kv_bytes) // 1000 * 1000


class CostModel:
    """Step times of one model on one hardware."""

    def __init__(self, hardware: Hardware = H100, model: Model = QWEN25_32B) -> None:
        self.hardware = hardware
        self.model = model
        effective = hardware.flops * hardware.mfu
        self._weights_s = model.parameters * BYTES_PER_VALUE / hardware.bandwidth
        self._token_s = 2.0 * model.parameters / effective
        self._pair_s = 4.0 * model.layers * model.heads * model.head_dim / effective
        self._kv_s = model.kv_bytes / hardware.bandwidth

    def step_s(self, computed_tokens: int, attention_pairs: float, kv_tokens: int) -> float:
        """Seconds for one step.

        Args:
            computed_tokens: tokens run through the model (prefill chunks and decodes).
            attention_pairs: (computed token, context token) pairs of the prefill chunks.
            kv_tokens: context tokens that decoding requests read.
        """
        compute = computed_tokens * self._token_s + attention_pairs * self._pair_s
        return self.hardware.overhead_s + max(self._weights_s, compute) + kv_tokens * self._kv_s


class Faster:
    """Step times of a machine that is `speed` times as fast as another."""

    def __init__(self, times: StepTimes, speed: float) -> None:
        self._times = times
        self._speed = speed

    def step_s(self, computed_tokens: int, attention_pairs: float, kv_tokens: int) -> float:
        """See `CostModel.step_s`."""
        return self._times.step_s(computed_tokens, attention_pairs, kv_tokens) / self._speed


def chunk_pairs(start: int, tokens: int) -> float:
    """Attention pairs of a prefill chunk of `tokens` behind `start` context tokens."""
    return tokens * (start + 0.5 * tokens)


MODELS: Final = {
    "w1": (H100, QWEN25_32B),
    "w2": (H100, QWEN25_32B),
    "w3": (H100_TP2, LLAMA31_70B),
    "w4": (H100, MISTRAL_24B),
    "w5": (H100, GEMMA2_27B),
}
"""Hardware and model of the paper's workload families, by the first two letters of the cell."""


def cost_model_for(workload_name: str) -> CostModel:
    """The paper's pairing for its own cells, the default pairing for everything else."""
    hardware, model = MODELS.get(workload_name[:2], (H100, QWEN25_32B))
    return CostModel(hardware, model)


def arena_for(workload_name: str) -> int:
    """`arena_tokens` of the same pairing."""
    cost = cost_model_for(workload_name)
    return arena_tokens(cost.hardware, cost.model)
