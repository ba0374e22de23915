"""Checks of our simulated engines on simulators that are not ours, one module for each simulator.

aisimulate  NVIDIA's, with its own engine, cache and step times; gets our order of admission
blis        BLIS (inference-sim), likewise
sglang      SGLang's: the release's scheduler and cache with our plug-in inside, and predicted step times
clock       fits our step times to NVIDIA's tables and to the paper

Each runs with `python -m bench.neutral.NAME`, on a seed that nothing was tuned on.
"""
