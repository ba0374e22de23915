"""Demand-aware eviction: what the waiting queue still needs goes last."""
