"""Demand eviction: cached blocks that the waiting queue still needs are evicted last."""
