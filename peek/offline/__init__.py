"""Offline scheduling: the whole batch is known before the first prompt runs."""

from peek.offline.reordering import Group, Reordering, reorder

__all__ = ["Group", "Reordering", "reorder"]
