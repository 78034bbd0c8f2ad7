"""`python -m headrace`: the same as the command `headrace`."""

import sys

from headrace.cli import main

# Where worker processes are not forked, they import this module anew.
if __name__ == "__main__":
    sys.exit(main())
