"""Adapters wire the core into engines; each translates at the door and is imported on its own."""
