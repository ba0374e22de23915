"""Adapters wire the core into engines.  Each translates the engine's objects and is imported on its own."""
