"""The same order for batches larger than memory (DuckDB) and on a cluster (Ray Data)."""
