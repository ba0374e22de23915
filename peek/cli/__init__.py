"""The `peek` command: thin, it parses, calls the library and prints."""
