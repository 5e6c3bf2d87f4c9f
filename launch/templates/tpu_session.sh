#!/usr/bin/env bash
# Written by `python -m launch tpu run`, for the tmux session on each host. With --dry_run it prints its commands
# and runs none.
%%{prologue}

need tee 'Run this on a TPU VM'
cd "$HOME"
if [ -z "$dry_run" ]; then
  exec > >(tee -ai vortaro/run.log) 2>&1
  cd vortaro/code
fi
trap : INT # Ctrl-C in the session reaches the run, which saves
code=0
run bash -c 'echo "$$" > ../pid; exec "$@"' bash %%{command} || code=$?
if [ -z "$dry_run" ]; then
  echo "The run ended with exit code $code."
fi
exit "$code"
