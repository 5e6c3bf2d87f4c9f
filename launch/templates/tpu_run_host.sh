#!/usr/bin/env bash
# Written by `python -m launch tpu run`, for each host. With --dry_run it prints its commands and runs none.
%%{prologue}

need tmux 'Run this on a TPU VM'
cd "$HOME"
if [ -z "$dry_run" ] && [ ! -x vortaro/venv/bin/python ]; then
  echo "vortaro: Vortaro is not installed on $HOSTNAME. Run \`python -m launch tpu install\` first." >&2
  exit 2
fi
if [ -z "$dry_run" ] && tmux has-session -t =vortaro 2> /dev/null; then
  echo "vortaro: A run is active on $HOSTNAME. Stop it first with \`python -m launch tpu kill\`." >&2
  exit 2
fi
run tmux new-session -d -s vortaro 'bash launch_session.sh'
