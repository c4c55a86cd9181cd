"""`python -m broker`."""

import sys

from broker.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
