"""One of several processes that train one entry of every family: [flags of processes] FOLDER NAME=OVERRIDES ..."""

import json
import sys

from runners.flags import prepare_devices
from runners.joining import joined
from runners.main import parse, run

if __name__ == "__main__":
    *where, folder, entries = sys.argv[1:]
    options = parse([*where, "--exp=tiny.CharTiny", "--workdir=none"])
    prepare_devices(None)
    with joined(options):
        for name, overrides in json.loads(entries).items():
            sets = [f"--set={override}" for override in overrides]
            flags = [f"--exp={name}", "--smoke", f"--workdir={folder}/{name}", "--no-tensorboard", *sets]
            assert run(parse(flags)) == 0
