"""One of several processes that meet once and carry out several commands: [flags of processes] FILE.

FILE holds, as JSON and by name, the folder and the runner's arguments that each of the processes has.
"""

import functools
import importlib
import json
import os
import sys
from pathlib import Path

from runners.flags import prepare_devices, run_app
from runners.main import parse, run
from runners.processes.distributed import joined

MARK, CODE = "=== scenario ", "=== exit code "

if __name__ == "__main__":
    *where, file = sys.argv[1:]
    options = parse([*where, "--exp=tiny.CharTiny", "--workdir=none"])
    prepare_devices(None)
    with joined(options, several_processes=True, saves_on_sigterm=True) as processes:
        for name, places in json.loads(Path(file).read_text()).items():
            folder, arguments = places[processes.index]
            os.chdir(folder)
            sys.path[0] = folder
            importlib.invalidate_caches()
            print(f"{MARK}{name}", flush=True)
            print(f"{MARK}{name}", file=sys.stderr, flush=True)
            code = run_app(parse, functools.partial(run, processes=processes), arguments)
            sys.stdout.flush()
            print(f"{CODE}{code}", file=sys.stderr, flush=True)
