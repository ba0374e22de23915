"""Policies over request streams on real and simulated engines, and docs/evaluation.md from the results."""
