"""`python -m registry`."""

import sys

from registry.command_line import main

sys.exit(main(sys.argv[1:]))
