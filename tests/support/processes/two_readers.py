"""One of several processes that read an input: `python -m tests.support.processes.two_readers PORT COUNT INDEX`."""

import json
import sys

import jax

from runners.training.input_state import gathered, own

if __name__ == "__main__":
    port, count, index = sys.argv[1:]
    jax.distributed.initialize(f"localhost:{port}", int(count), int(index))
    mine = {"next_batch": 7, "snapshot": {"batch": 5, "files": {"a": "x" * (3 + 10 * int(index))}}}
    plain = gathered({"next_batch": 7})
    saved = gathered(mine)
    other = own({"next_batch": 7, "hosts": [mine] * 3})
    print(json.dumps({"plain": plain, "saved": saved, "own": own(saved) == mine, "other": other}), flush=True)
