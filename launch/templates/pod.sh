#!/bin/sh
# Runs its arguments as a command and passes SIGTERM on. A run that was told to stop saves and ends with 0; Kubernetes
# would take that for the end of training, so the pod that was told ends with 143, and the JobSet starts again.
told=
child=
trap 'told=1; [ -z "$child" ] || kill -TERM "$child"' TERM
"$@" &
child=$!
[ -z "$told" ] || kill -TERM "$child"
code=0
wait "$child" || code=$?
while kill -0 "$child" 2> /dev/null; do
  code=0
  wait "$child" || code=$?
done
if [ -n "$told" ]; then
  exit 143
fi
exit "$code"
