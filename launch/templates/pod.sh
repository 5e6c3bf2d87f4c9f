#!/bin/sh
# Runs its arguments as a command and forwards SIGTERM. After SIGTERM a run saves and exits with 0, which Kubernetes
# would take for the end of training, so the pod exits with 143 and the JobSet restarts.
is_stopping=
child=
trap 'is_stopping=1; [ -z "$child" ] || kill -TERM "$child"' TERM
"$@" &
child=$!
[ -z "$is_stopping" ] || kill -TERM "$child"
code=0
wait "$child" || code=$?
while kill -0 "$child" 2> /dev/null; do
  code=0
  wait "$child" || code=$?
done
if [ -n "$is_stopping" ]; then
  exit 143
fi
exit "$code"
