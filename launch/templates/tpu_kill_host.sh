#!/usr/bin/env bash
# Written by `python -m launch tpu kill`, for each host. With --dry_run it prints its commands and runs none.
%%{prologue}

need tmux 'Run this on a TPU VM'
cd "$HOME"
if [ -n "$dry_run" ]; then
  show_command kill -TERM PID
  exit 0
fi
if ! tmux has-session -t =vortaro 2> /dev/null; then
  echo "No run is active on $HOSTNAME."
  exit 0
fi
pid=$(cat vortaro/pid)
run kill -TERM "$pid" || true # the run may end at this moment
for _ in $(seq %%{grace}); do
  if ! tmux has-session -t =vortaro 2> /dev/null; then
    exit 0
  fi
  sleep 1
done
echo "vortaro: The run on $HOSTNAME did not end within %%{grace} seconds and is killed." >&2
run pkill -KILL -P "$pid" || true # the run, if a supervisor has started it
run kill -KILL "$pid" || true
run tmux kill-session -t =vortaro || true
exit 1
