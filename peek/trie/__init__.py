"""The pending radix tree, its keys, and the joint walk with an engine's cache."""
