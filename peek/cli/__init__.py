"""The `peek` command: it parses the command line, calls the library and prints."""
