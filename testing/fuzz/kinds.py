"""All kinds of inputs by name. Imports JAX and the libraries that read them."""

from testing.fuzz.data_kinds import DATA_KINDS
from testing.fuzz.kind import Kind
from testing.fuzz.run_kinds import RUN_KINDS

KINDS: dict[str, Kind] = {kind.name: kind for kind in (*RUN_KINDS, *DATA_KINDS)}
