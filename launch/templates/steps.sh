#!/usr/bin/env bash
# Written by `python -m launch`. With --dry_run it prints its commands and runs none.
%%{prologue}

need %%{tool} %%{where}
%%{commands}
