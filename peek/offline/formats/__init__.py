"""Batch files: what their lines say, and how an order is written down.  Bytes in, bytes out; no files."""
