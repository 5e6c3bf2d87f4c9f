"""`python -m vortaro`."""

import sys

from vortaro.command_line import main

if __name__ == "__main__":
    sys.exit(main())
