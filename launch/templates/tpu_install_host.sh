#!/usr/bin/env bash
# Written by `python -m launch tpu install`, for each host. With --dry_run it prints its commands and runs none.
%%{prologue}

need python3 'Run this on a TPU VM'
cd "$HOME"
run rm -rf vortaro/code
run mkdir -p vortaro/code
run tar -xzf launch_code.tar.gz -C vortaro/code
run python3 -m pip install --quiet --user uv
run python3 -m uv venv --quiet --allow-existing --python %%{python} vortaro/venv
run cd vortaro/code
run python3 -m uv pip install --quiet --python ../venv/bin/python %%{packages}
