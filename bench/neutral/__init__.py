"""Checks of our simulated engines on simulators that are not ours, one module for each simulator.

aisimulate  NVIDIA's: own engine, own cache, own step times; gets our order of admission
blis        BLIS (inference-sim): likewise
sglang      SGLang's: the release's own scheduler and cache with our plug-in inside, predicted step times
clock       what step times as predicted there would change of our figures

Each runs with `python -m bench.neutral.NAME`, on a seed that nothing was tuned on.
"""
