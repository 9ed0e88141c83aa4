"""`python -m export.demo`."""

import sys

from export.demo.commands import main

# Processes that the corpus starts import this file again.
if __name__ == "__main__":
    sys.exit(main())
