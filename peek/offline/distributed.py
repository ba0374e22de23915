"""`reorder_dataset` under the name by which it was first known; it lives in `peek.offline.scale.ray_data`."""

from peek.offline.scale.ray_data import Columns, reorder_dataset

__all__ = ["Columns", "reorder_dataset"]
