"""Process of an implementation: prepares its work, then runs one turn per line of standard input.

python -m benchmarks.implementations.worker train torch_models --size=6x384 --weights=FILE --options compiled
"""

import argparse
import contextlib
import importlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.implementations.work import SIZES


def prepared(options: argparse.Namespace) -> Any:
    """Returns the function that runs one turn of a number of repetitions."""
    module = importlib.import_module(f"benchmarks.implementations.{options.implementation}")
    size, names = SIZES[options.size], set(options.options)
    if options.work == "train":
        return module.trainer(size, options.weights, names)
    decode = module.decoder(size, options.weights, options.rows, options.prompt, options.new, names)
    return lambda count: [decode() for _ in range(count)][-1].tolist()


def forget_peak() -> None:
    """Resets the kernel's record of this process's peak memory, which would include the parent's memory."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int | None:
    """Returns the peak memory of this process since `forget_peak`; None if the kernel does not report it."""
    status = Path("/proc/self/status")
    peak = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    return int(peak[1]) * 1024 if peak else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["train", "decode"])
    parser.add_argument("implementation", help="a module of benchmarks.implementations")
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--weights", required=True, help="a file in the format of the size")
    parser.add_argument("--options", nargs="*", default=[])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=256)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers
    send = lambda **values: print(json.dumps(values), file=answers, flush=True)
    try:
        turn = prepared(options)
    except ImportError as error:
        send(missing=str(error))
        return 0
    send(ready=True)
    for line in sys.stdin:
        with contextlib.suppress(OSError):
            forget_peak()
        began = time.perf_counter()
        result = turn(int(line))
        send(seconds=time.perf_counter() - began, result=result, peak=peak_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
