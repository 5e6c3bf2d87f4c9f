#!/usr/bin/env bash
# Written by `python -m launch tpu kill`, for each host. With --dry_run it says its commands and runs none.
%%{prologue}

need tmux 'this script is for a TPU VM'
cd "$HOME"
if [ -z "$dry_run" ] && ! tmux has-session -t =vortaro 2> /dev/null; then
  echo "Nothing runs on $HOSTNAME."
  exit 0
fi
pid=PID
if [ -z "$dry_run" ]; then
  pid=$(cat vortaro/pid)
fi
run kill -TERM "$pid" || true # one that ends just now needs none
for _ in $(seq %%{grace}); do
  if [ -n "$dry_run" ] || ! tmux has-session -t =vortaro 2> /dev/null; then
    exit 0
  fi
  sleep 1
done
echo "It did not end within $((%%{grace})) seconds." >&2
run kill -KILL "$pid" || true
run tmux kill-session -t =vortaro
