"""Real servers, stock beside `peek`, under the engines' own benchmark clients: `make bench-servers`."""
