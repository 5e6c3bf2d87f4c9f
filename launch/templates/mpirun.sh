#!/usr/bin/env bash
# Written by `python -m launch mpirun`. With --dry_run it prints its commands and runs none.
%%{prologue}

need mpirun 'Install Open MPI'
# Seconds between SIGTERM and SIGKILL, so that runs can save. Open MPI 4 reads the first variable, 5 the second.
run export OMPI_MCA_odls_base_sigkill_timeout=%%{grace}
run export PRTE_MCA_odls_base_sigkill_timeout=%%{grace}
set -- %%{mpirun}
show_command "$@"
if [ -z "$dry_run" ]; then
  exec "$@" # replaces this script, so that mpirun receives signals
fi
