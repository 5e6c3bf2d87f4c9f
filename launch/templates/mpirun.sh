#!/usr/bin/env bash
# Written by `python -m launch mpirun`. With --dry_run it says its commands and runs none.
%%{prologue}

need mpirun 'run this where Open MPI is installed'
# Between SIGTERM and SIGKILL, so that runs save: the first is read by Open MPI 4, the second by 5.
run export OMPI_MCA_odls_base_sigkill_timeout=%%{grace}
run export PRTE_MCA_odls_base_sigkill_timeout=%%{grace}
set -- %%{mpirun}
say "$@"
if [ -z "$dry_run" ]; then
  exec "$@" # in this script's place, so that signals are mpirun's
fi
