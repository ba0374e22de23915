"""Adapters connect the core to engines.  Each translates its engine's objects and is imported on its own."""
