#!/usr/bin/env bash
# A command, and the same again as long as its exit code says that it then goes on (143, 75, 134, 137); any other ends this, with it.
#   bash launch/again.sh -- ptmjax train --gin_file=bert_demo.gin --workdir=runs/demo
# --restarts=N   how often at most (100)
# --pause=S      seconds before each (10)
# --dry_run      print the command and start nothing
# SIGTERM goes to the command, and then nothing is started again.
set -uo pipefail
# shellcheck source=launch/launching.sh
source "$(dirname "$0")/launching.sh"
restarts=100 pause=10
given "restarts pause" "$@"
counted restarts
[[ $pause =~ ^[0-9]{1,6}$ ]] || fault "--pause=$pause is no number of seconds"
[ ${#arguments[@]} -gt 0 ] || fault "no command: write it behind --"
if $dry_run; then
  quoted "${arguments[@]}"
  exit 0
fi

stopped=false child=
trap 'signalled=true stopped=true; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM
trap : INT # a terminal sends it to the command too
for ((turn = 1; ; turn++)); do
  "${arguments[@]}" &
  child=$!
  awaited "$child"
  child=
  goes_on "$code" && ! $stopped && [ "$turn" -le "$restarts" ] || exit "$code"
  echo "ptmjax: ended with code $code: again in $pause s (restart $turn of $restarts at most)" >&2
  sleep "$pause" &
  wait $! # which SIGTERM cuts
  ! $stopped || exit "$code"
done
