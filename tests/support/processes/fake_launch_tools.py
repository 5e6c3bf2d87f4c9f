"""Fakes of the programs that the launcher calls: they record their calls."""

import json
import os
import sys
from pathlib import Path

RECORDER = """#!{python}
import json, os, sys
seen = {{name: value for name, value in os.environ.items() if name.startswith(("OMPI_", "PRTE_"))}}
with open(os.environ["RECORD"], "a") as file:
    print(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:], *sorted(seen)]), file=file)
"""

# Copies to and runs on two folders, as gcloud does on two hosts.
GCLOUD = """
words = [word for word in sys.argv[1:] if not word.startswith("--")]
hosts = [os.path.join(os.environ["HOSTS"], name) for name in ("host0", "host1")]
import shutil, subprocess
if words[3] == "scp":
    for host in hosts:
        os.makedirs(host, exist_ok=True)
        for file in words[4:-1]:
            shutil.copy(file, host)
for command in [word.partition("=")[2] for word in sys.argv if word.startswith("--command=")]:
    for host in hosts:
        path = os.path.join(os.environ["HOSTS"], "bin") + ":" + os.environ["PATH"]
        done = subprocess.run(["bash", "-c", command], env={**os.environ, "HOME": host, "PATH": path}, cwd=host)
        if done.returncode:
            sys.exit(done.returncode)
"""

SBATCH = """
import subprocess
is_parsable = "--parsable" in sys.argv
done = subprocess.run(["bash", sys.argv[-1]], stdout=subprocess.DEVNULL if is_parsable else None)
print("7;cluster" if is_parsable else "Submitted batch job 7")
sys.exit(done.returncode)
"""

# One session, which is a process of its own.
TMUX = """#!/usr/bin/env bash
verb=$1
session=$HOME/.session
case $verb in
  new-session) setsid bash -c "${@: -1}" < /dev/null > /dev/null 2>&1 & echo $! > "$session" ;;
  has-session) [ -e "$session" ] && kill -0 "$(cat "$session")" 2> /dev/null ;;
  kill-session) kill -KILL -- -"$(cat "$session")" ;;
esac
"""


def executable(path: Path, text: str) -> None:
    """Writes a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Machine:
    """A folder of fake programs, first in PATH, and their recorded calls."""

    def __init__(self, folder: Path):
        self.bin, self.record, self.hosts = folder / "bin", folder / "record", folder / "hosts"
        recorder = RECORDER.format(python=sys.executable)
        more = {"gcloud": GCLOUD, "sbatch": SBATCH}
        for name in ("gcloud", "sbatch", "srun", "mpirun", "kubectl"):
            executable(self.bin / name, recorder + more.get(name, ""))
        executable(self.hosts / "bin" / "tmux", TMUX)
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "RECORD": str(self.record),
            "HOSTS": str(self.hosts),
        }

    def calls(self) -> list[list[str]]:
        """Calls of the fake programs, in order."""
        if not self.record.exists():
            return []
        return [json.loads(line) for line in self.record.read_text().splitlines()]
