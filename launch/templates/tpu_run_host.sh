#!/usr/bin/env bash
# Written by `python -m launch tpu run`, for each host. With --dry_run it says its commands and runs none.
%%{prologue}

need tmux 'this script is for a TPU VM'
cd "$HOME"
if [ -z "$dry_run" ] && [ ! -x vortaro/venv/bin/python ]; then
  echo "vortaro: Nothing is installed on $HOSTNAME: say \`python -m launch tpu install\` first." >&2
  exit 2
fi
if [ -z "$dry_run" ] && tmux has-session -t =vortaro 2> /dev/null; then
  echo "vortaro: A run is under way on $HOSTNAME: end it first, by \`python -m launch tpu kill\`." >&2
  exit 2
fi
run tmux new-session -d -s vortaro 'bash launch_session.sh'
