#!/usr/bin/env bash
# A command, and the same again as long as its exit code says that it then goes on (143, 75, 134, 137); any other ends this, with it.
#   bash launch/again.sh -- ptmjax train --gin_file=bert_demo.gin --workdir=runs/demo
# --restarts=N     how often at most (100)
# --pause=S        seconds before each (10)
# --idle=N         after how many attempts in a row that came to nothing it gives up (5): each ended by the loss of a process (75, 134, 137)
#                  within --short=S seconds (900), as all do where another worker has ended with a fault that its user must mend, or by
#                  SIGTERM (143) within 5 seconds, in which no step can have been saved: its machine is taken down, or something ends it
# --dry_run        print the command and start nothing
# SIGTERM, or the end of the terminal (SIGHUP), goes to the command as SIGTERM; Ctrl-C reaches it from the terminal. This waits for it, ends
# with its code, and starts nothing again; in a pause it ends at once, with 143 or 130.
set -uo pipefail
# shellcheck source=launch/launching.sh
source "$(dirname "$0")/launching.sh"
restarts=100 pause=10 idle=5 short=900
given "restarts pause idle short" "$@"
counted restarts idle short
[[ $pause =~ ^[0-9]{1,6}$ ]] || fault "--pause=$pause is no number of seconds"
[ ${#arguments[@]} -gt 0 ] || fault "no command: write it behind --"
if $dry_run; then
  quoted "${arguments[@]}"
  exit 0
fi
runnable "${arguments[0]}"

# early: a signal came while there was a command whose number is not known yet, or none.
stopped=0 early=false pausing=false child=
stop() {
  signalled=true stopped=$1
  if [ -z "$child" ]; then
    early=true
  elif [ "$1" -eq 143 ] || $pausing; then
    kill -TERM "$child" 2>/dev/null
  fi
}
trap 'stop 143' TERM HUP
trap 'stop 130' INT

# attended COMMAND...: its exit code, in code.
attended() {
  begun "$@"
  child=$!
  ! $early || kill -TERM "$child" 2>/dev/null
  awaited "$child"
  child=
}

in_vain=0
for ((turn = 1; ; turn++)); do
  since=$SECONDS
  attended "${arguments[@]}"
  goes_on "$code" && [ "$stopped" -eq 0 ] && [ "$turn" -le "$restarts" ] || exit "$code"
  # How long it took is what every worker knows. To be joined is waited for 300 s; 143 tells of a step that is saved, if there was one.
  lasted=$((SECONDS - since)) enough=$short
  [ "$code" -ne 143 ] || enough=5
  if [ "$lasted" -lt "$enough" ]; then in_vain=$((in_vain + 1)); else in_vain=0; fi
  if [ "$in_vain" -ge "$idle" ]; then
    echo "ptmjax: gives up: ended with code $code, as $in_vain attempts in a row within $short s each: see what the run's other processes said last" >&2
    exit "$code"
  fi
  echo "ptmjax: ended with code $code: again in $pause s (restart $turn of $restarts at most)" >&2
  pausing=true
  attended sleep "$pause"
  pausing=false
  [ "$stopped" -eq 0 ] || exit "$stopped"
done
