"""`python -m registry`."""

import sys

from registry.tool.command_line import main

sys.exit(main(sys.argv[1:]))
