"""`python -m peek` is the `peek` command."""

import sys

from peek.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
