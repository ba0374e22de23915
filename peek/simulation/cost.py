"""Step times of an engine: a roofline of named hardware and models, or a fit to a real engine's steps.

    step = overhead + max(weights / read, flops / (peak x mfu)) + kv / read,    read = bandwidth x mbu

- weights: every step reads all parameters once, 2 bytes each.
- flops: 2 x parameters per computed token, plus attention of every prefill token to its context.  That is
  4 x layers x heads x head_dim per (token, context token) pair, halved within a chunk by causality.
- kv: decoding reads each running request's KV once a step, 2 x layers x kv_heads x head_dim x 2 bytes each.

Hardware figures are those of the vendor's data sheet; memory is what the driver reports.  Model figures are
those of the published `config.json` files.  For `mfu` and `mbu` see docs/simulator.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final, Protocol

import numpy as np

from peek.errors import WorkloadError

BYTES_PER_VALUE: Final = 2  # size of a weight or KV value in bytes: that of bf16


class StepTimes(Protocol):
    """An object that says how long a step takes."""

    def step_s(self, computed_tokens: int, attention_pairs: float, kv_tokens: int) -> float:
        """Return the seconds of a step that computes so many tokens, prefill and decode.

        `attention_pairs` are its (computed token, context token) pairs in prefill, see `chunk_pairs`, and
        `kv_tokens` the context tokens that decoding requests read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Hardware:
    """The accelerators of one replica, taken together."""

    name: str
    flops: float  # dense bf16 peak, FLOP/s
    bandwidth: float  # memory bandwidth, bytes/s
    memory_gib: float  # memory that the driver reports, GiB
    mfu: float = 0.75  # part of `flops` that prefill reaches (model FLOPs utilisation)
    mbu: float = 0.80  # part of `bandwidth` that reading reaches (model bandwidth utilisation)
    overhead_s: float = 0.0015  # launch and scheduling time of a step, seconds


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes of a dense transformer that decide its step time."""

    name: str
    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def kv_bytes(self) -> int:
        """Size of one token in the KV cache, in bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_VALUE


H100 = Hardware("H100-SXM-80GB", 989e12, 3.35e12, 79.6)
H100_TP2 = Hardware("2xH100-SXM-80GB TP=2", 2 * 989e12, 2 * 3.35e12, 2 * 79.6)

QWEN25_32B = Model("Qwen2.5-32B", 32.8e9, 64, 40, 8, 128)
LLAMA31_70B = Model("Llama-3.1-70B", 70.6e9, 80, 64, 8, 128)
MISTRAL_24B = Model("Mistral-Small-24B", 23.6e9, 40, 32, 8, 128)
GEMMA2_27B = Model("Gemma-2-27B", 27.2e9, 46, 32, 16, 128)


# Part of a card's memory that weights and KV cache may fill: SGLang's `mem_fraction_static` as the paper sets
# it.  vLLM's 0.9 gives 1.6 GiB more per card, but its peak of activations takes as much.
UTILISATION: Final = 0.88


def arena_tokens(hardware: Hardware, model: Model, utilisation: float = UTILISATION) -> int:
    """Return the arena that the weights leave on a card, in tokens, rounded down to whole thousands.

        (memory x utilisation - weights) / KV bytes of a token

    `WorkloadError` if the weights leave no room for 1,000 tokens.
    """
    free = hardware.memory_gib * utilisation * 2**30 - model.parameters * BYTES_PER_VALUE
    if free < 1000 * model.kv_bytes:
        raise WorkloadError(
            f"{model.name} does not fit {hardware.name} at {utilisation:g} of {hardware.memory_gib:g} GiB"
        )
    return int(free / model.kv_bytes) // 1000 * 1000


class CostModel:
    """Step times of one model on one replica's hardware, by the module's formula."""

    def __init__(self, hardware: Hardware = H100, model: Model = QWEN25_32B) -> None:
        self.hardware = hardware
        self.model = model
        effective = hardware.flops * hardware.mfu
        read = hardware.bandwidth * hardware.mbu
        self._weights_s = model.parameters * BYTES_PER_VALUE / read
        self._token_s = 2.0 * model.parameters / effective
        self._pair_s = 4.0 * model.layers * model.heads * model.head_dim / effective
        self._kv_s = model.kv_bytes / read

    def step_s(self, computed_tokens: int, attention_pairs: float, kv_tokens: int) -> float:
        compute = computed_tokens * self._token_s + attention_pairs * self._pair_s
        return self.hardware.overhead_s + max(self._weights_s, compute) + kv_tokens * self._kv_s


class Faster:
    """Step times of a machine that is `speed` times as fast as that of `times`."""

    def __init__(self, times: StepTimes, speed: float) -> None:
        self._times = times
        self._speed = speed

    def step_s(self, computed_tokens: int, attention_pairs: float, kv_tokens: int) -> float:
        return self._times.step_s(computed_tokens, attention_pairs, kv_tokens) / self._speed


def chunk_pairs(start: int, tokens: int) -> float:
    """Return the attention pairs of a prefill chunk of `tokens` tokens after `start` context tokens."""
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
    """Make the cost model of a workload: the paper's pairing for its cells, else Qwen2.5-32B on an H100."""
    return CostModel(*MODELS.get(workload_name[:2], (H100, QWEN25_32B)))


def arena_for(workload_name: str) -> int:
    """Return the arena that `cost_model_for` this workload leaves, in tokens."""
    cost = cost_model_for(workload_name)
    return arena_tokens(cost.hardware, cost.model)


# -- cards and models by name -------------------------------------------------------------------------


CARDS: Final = {
    "h100": H100,
    "h100-nvl": Hardware("H100-NVL-94GB", 835e12, 3.9e12, 93.6),
    "h200": Hardware("H200-SXM-141GB", 989e12, 4.8e12, 140.4),
    "b200": Hardware("B200-SXM-180GB", 2250e12, 8.0e12, 179.1),
    "a100-80gb": Hardware("A100-SXM-80GB", 312e12, 2.039e12, 80.0),
    "a100-40gb": Hardware("A100-SXM-40GB", 312e12, 1.555e12, 40.0),
    "l40s": Hardware("L40S-48GB", 362e12, 0.864e12, 45.0),
    "l4": Hardware("L4-24GB", 121e12, 0.3e12, 22.5),
    "a10g": Hardware("A10G-24GB", 70e12, 0.6e12, 22.5),
    "rtx-4090": Hardware("RTX-4090-24GB", 165e12, 1.008e12, 24.0),
    "mi300x": Hardware("MI300X-192GB", 1307e12, 5.3e12, 192.0),
}

MODELS_BY_NAME: Final = {
    "qwen2.5-7b": Model("Qwen2.5-7B", 7.62e9, 28, 28, 4, 128),
    "qwen2.5-14b": Model("Qwen2.5-14B", 14.8e9, 48, 40, 8, 128),
    "qwen2.5-32b": QWEN25_32B,
    "qwen2.5-72b": Model("Qwen2.5-72B", 72.7e9, 80, 64, 8, 128),
    "qwen3-8b": Model("Qwen3-8B", 8.19e9, 36, 32, 8, 128),
    "qwen3-32b": Model("Qwen3-32B", 32.8e9, 64, 64, 8, 128),
    "llama-3.1-8b": Model("Llama-3.1-8B", 8.03e9, 32, 32, 8, 128),
    "llama-3.1-70b": LLAMA31_70B,
    "mistral-7b": Model("Mistral-7B", 7.25e9, 32, 32, 8, 128),
    "mistral-small-24b": MISTRAL_24B,
    "gemma-2-27b": GEMMA2_27B,
}

_NOT_DENSE: Final = ("num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank")
"""Fields of `config.json` that only models outside the formula have: experts, or compressed KV."""


def card_named(name: str, count: int = 1) -> Hardware:
    """Return `count` cards taken together (tensor parallelism); `WorkloadError` lists the valid names."""
    if name not in CARDS:
        raise WorkloadError(f"card {name!r} is unknown; valid: {', '.join(CARDS)}")
    card = CARDS[name]
    if count == 1:
        return card
    sums = {each: count * getattr(card, each) for each in ("flops", "bandwidth", "memory_gib")}
    return replace(card, name=f"{count}x{card.name} TP={count}", **sums)


def model_named(name: str) -> Model:
    """Return a model of `MODELS_BY_NAME`; `WorkloadError` lists the valid names."""
    if name not in MODELS_BY_NAME:
        raise WorkloadError(f"model {name!r} is unknown; valid: {', '.join(MODELS_BY_NAME)}")
    return MODELS_BY_NAME[name]


def model_of(name: str, config: Mapping[str, Any]) -> Model:
    """Return the model of a Hugging Face `config.json`: a dense transformer with full attention.

    Its parameters are counted from the sizes: embeddings (twice unless tied), and in each layer four
    attention matrices and three of a gated feed-forward part.  Biases and norms, below 0.1 %, are left out.
    `WorkloadError` if a size is no integer in 1..2**53 - 1, or the model is of another kind.
    """
    kinds = config.get("layer_types") or ["full_attention"]
    odd = next((field for field in _NOT_DENSE if config.get(field)), "")
    if odd or not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise WorkloadError(
            f"{name}: has {odd or 'layer_types'}, so it is no dense transformer with full attention"
        )
    fields = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    hidden, layers, heads, inner, words = (_size(name, config, field) for field in fields)
    kv_heads = _size(name, {"num_key_value_heads": heads, **config}, "num_key_value_heads")
    head_dim = _size(name, {**config, "head_dim": config.get("head_dim") or hidden // heads}, "head_dim")
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    embeddings = words * hidden * (1 if config.get("tie_word_embeddings") else 2)
    parameters = layers * (attention + 3 * hidden * inner) + embeddings
    return Model(name, float(parameters), layers, heads, kv_heads, head_dim)


def _size(name: str, config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**53:
        raise WorkloadError(f"{name}: {field} is {str(value)[:60]!r}, not a size")
    return value


# -- step times fitted to a real engine ---------------------------------------------------------------


# Floors that are tried, in tokens: a step of fewer tokens costs as much as the floor.  It is about 120 on an
# H100, and larger where computing is faster for the bandwidth.
FLOORS: Final = (1, 32, 64, 96, 128, 160, 192, 256, 384, 512, 768)
ENOUGH: Final = 256  # number of steps before the first fit: 64 for each of the four terms
_FADE: Final = 0.999  # factor of a step's weight with each further step: a thousand steps are remembered
_SOLVE_EVERY: Final = 64  # number of steps between two fits
_SHORTEST_S: Final = 1e-4  # lower bound of a step's time in seconds, so that nothing is divided by 0
_MOST_STALLED: Final = 2.0  # upper bound of the factor by which stalls may scale the fitted step times
_UNITS: Final = np.array([1.0, 1e-3, 1e-7, 1e-5])  # of the four terms: brings their squares to one magnitude


class _Fit:
    """Least-squares fits, one for each floor, under one assumption of which step an interval belongs to."""

    def __init__(self) -> None:
        self.count = 0
        self._moments = np.zeros((len(FLOORS), 4, 4))
        self._products = np.zeros((len(FLOORS), 4))
        self._weight = 0.0
        self._seconds = 0.0
        self._sums = np.zeros((len(FLOORS), 4))

    def add(self, step: np.ndarray, seconds: float) -> None:
        terms = step * (_UNITS / seconds)
        self._moments *= _FADE
        self._moments += terms[:, :, None] * terms[:, None, :]
        self._products *= _FADE
        self._products += terms
        self._sums *= _FADE
        self._sums += step * _UNITS
        self._weight = self._weight * _FADE + 1.0
        self._seconds = self._seconds * _FADE + seconds
        self.count += 1

    def solve(self) -> tuple[float, int, np.ndarray]:
        """Return the mean squared relative error, place and coefficients of the floor that fits best."""
        best = (np.inf, 0, np.zeros(4))
        for place in range(len(FLOORS)):
            found = _not_negative(self._moments[place], self._products[place])
            error = self._weight - 2.0 * found @ self._products[place] + found @ self._moments[place] @ found
            best = min(best, (error / self._weight, place, found), key=itemgetter(0))
        error, place, found = best
        scale = self._seconds / max(float(found @ self._sums[place]), _SHORTEST_S)
        return error, place, found * min(scale, _MOST_STALLED)


def _not_negative(moments: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Solve the normal equations; leave out the lowest term until no coefficient is below 0."""
    kept = list(range(len(products)))
    found = np.zeros(len(products))
    while kept:
        part = moments[np.ix_(kept, kept)]
        ridge = np.eye(len(kept)) * (1e-9 * np.trace(part) + 1e-12)
        values = np.linalg.solve(part + ridge, products[kept])
        if values.min() >= 0.0:
            found[kept] = values
            break
        del kept[int(values.argmin())]
    return found


class MeasuredSteps:
    """`StepTimes` of a real engine, fitted to the steps that it took.

        step = a + b x max(f, computed tokens) + c x attention pairs + d x KV tokens read,    all >= 0

    These are the terms of `CostModel`: a step of fewer than `f` tokens, the best of `FLOORS`, waits for the
    weights.  The fit minimises the squared *relative* error, so a stall of a second weighs no more than any
    other step.  The coefficients are then scaled so that all steps together take as long as they did, stalls
    included, at most by `_MOST_STALLED`.  Old steps fade.

    An engine that prepares a step while the previous one runs (asynchronous scheduling, overlap) shows the
    time of a step one interval late.  Both cases are fitted, and the better fit counts.
    """

    def __init__(self) -> None:
        self._fits = (_Fit(), _Fit())
        self._begun: list[np.ndarray] = []  # the terms of the last two steps in a row, the later step last
        self._last_s = 0.0
        self._floor = 1
        self._terms = (0.0, 0.0, 0.0, 0.0)

    @property
    def known(self) -> bool:
        """True if enough steps were noted for a fit."""
        return self._fits[0].count >= ENOUGH

    def note(
        self, now: float, went_on: bool, computed_tokens: int, attention_pairs: float, kv_tokens: int
    ) -> None:
        """Note that a step begins, at `now` on a clock that never goes back.  O(1), tens of microseconds.

        `went_on`: whether the engine has had work all the time since the step before; if not, the interval
        counts for no step.  The other arguments are those of `StepTimes`.
        """
        seconds = max(now - self._last_s, _SHORTEST_S)
        if not went_on:
            self._begun.clear()
        for lag, step in enumerate(reversed(self._begun)):
            self._fits[lag].add(step, seconds)
        step = np.empty((len(FLOORS), 4))
        step[:] = (1.0, computed_tokens, attention_pairs, kv_tokens)
        np.maximum(step[:, 1], FLOORS, out=step[:, 1])
        self._begun = [*self._begun[-1:], step]
        self._last_s = now
        count = self._fits[0].count
        if count >= ENOUGH and count % _SOLVE_EVERY == 0:
            solved = (fit.solve() for fit in self._fits if fit.count >= ENOUGH)
            _, place, found = min(solved, key=itemgetter(0))
            self._floor = FLOORS[place]
            fixed, token, pair, kv = (found * _UNITS).tolist()
            self._terms = (fixed, token, pair, kv)

    def step_s(self, computed_tokens: int, attention_pairs: float, kv_tokens: int) -> float:
        fixed, token, pair, kv = self._terms
        computed = max(computed_tokens, self._floor)
        return max(fixed + token * computed + pair * attention_pairs + kv * kv_tokens, _SHORTEST_S)
