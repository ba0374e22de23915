"""Stock vLLM beside `peek` on a GPU: a bundle for a host without a network, a client, a table."""
