"""`python -m registry`."""

import sys

from registry.tool.verbs import main

sys.exit(main(sys.argv[1:]))
