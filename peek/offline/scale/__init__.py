"""The order of `reorder` for batches larger than memory (DuckDB) and on a cluster (Ray Data)."""
