"""Entry point of `python -m launch`."""

import sys

from launch.command_line import main

if __name__ == "__main__":
    sys.exit(main())
