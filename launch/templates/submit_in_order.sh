#!/usr/bin/env bash
# Written by `python -m launch slurm`. With --dry_run it prints its commands and runs none.
%%{prologue}

need sbatch %%{where}
job=
submit() { # argument: a batch script, which starts when that of the call before has ended
  after=
  if [ -n "$job" ]; then
    after=' "--dependency=afterany:${job%;*}"'
  fi
  printf '+ job=$(sbatch --parsable%s %q)\n' "$after" "$1"
  if [ -n "$dry_run" ]; then
    job=JOB
    return
  fi
  job=$(sbatch --parsable ${job:+"--dependency=afterany:${job%;*}"} "$1")
  echo "Submitted batch job $job"
}

%%{submissions}
