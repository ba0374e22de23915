"""The first name of `peek.offline.scale.ray_data`, kept for callers of `reorder_dataset`."""

from peek.offline.scale.ray_data import Columns, reorder_dataset

__all__ = ["Columns", "reorder_dataset"]
