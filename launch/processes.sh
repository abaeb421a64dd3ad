#!/usr/bin/env bash
# A training run of N processes on this machine.
#   bash launch/processes.sh [options] N [arguments of `ptmjax train`]
# --grace=S        seconds that a save may take after SIGTERM (120); what is left then is killed
# --dry_run        print the processes' commands and start none
# Where a process ends with a fault it is named, the others are ended, and its exit code is this one's. The same command goes on from
# the last checkpoint. SIGTERM, or the end of the terminal (SIGHUP), goes to all of them as SIGTERM: they save a step together and this
# ends with 143. PTMJAX_PYTHON: another interpreter than that of .venv. Where there are N GPUs or more (CUDA_VISIBLE_DEVICES, or as
# nvidia-smi tells), each process has as many as any other, of its own.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=launch/launching.sh
source "$root/launch/launching.sh"
# end: when what is left is killed, in this shell's seconds; 0 while nothing is.
pids=() stopped=0 end=0 grace=120
within() {
  [ "$end" -ne 0 ] && [ "$end" -le $((SECONDS + $1)) ] || end=$((SECONDS + $1))
}
# shellcheck disable=SC2329  # a trap calls it
stop() {
  within "$grace"
  stopped=$1
  [ "$1" -ne 143 ] || [ ${#pids[@]} -eq 0 ] || kill -TERM "${pids[@]}" 2>/dev/null
}
trap 'stop 143' TERM HUP
trap 'stop 130' INT # a terminal sends it to the processes too

options=()
while [[ ${1:-} == -* ]]; do
  options+=("$1")
  shift
done
# shellcheck disable=SC2034  # for given
behind=N
given "grace" "${options[@]}"
counted grace
n=${1:-}
[[ $n =~ ^[1-9][0-9]{0,3}$ ]] ||
  fault "the options end with how many processes: bash launch/processes.sh 2 --gin_file=bert_demo.gin --workdir=runs/two"
shift

interpreter=${PTMJAX_PYTHON:-$root/.venv/bin/python} port=PORT
if ! $dry_run; then
  if [ -z "${PTMJAX_PYTHON:-}" ]; then
    (cd "$root" && source launch/env.sh && found=$(some_python) && environment .venv "" "$found") || exit $((stopped ? stopped : 2))
  fi
  runnable "$interpreter" "let PTMJAX_PYTHON name a Python that has ptmjax, or unset it"
  port=$("$interpreter" -c 'import importlib.util, socket, sys
if None in map(importlib.util.find_spec, ("jax", "ptmjax")): sys.exit(1)
s = socket.socket(); s.bind(("localhost", 0)); print(s.getsockname()[1])') && [[ $port =~ ^[0-9]+$ ]] ||
    fault "$interpreter does not run ptmjax: let PTMJAX_PYTHON name a Python that has ptmjax, or unset it"
fi

seen=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null) || seen=""
IFS=, read -r -a gpus <<<"${CUDA_VISIBLE_DEVICES-${seen//$'\n'/,}}"
share=$((${#gpus[@]} / n))
for ((i = 0; i < n; i++)); do
  command=("$interpreter" -m ptmjax train --coordinator="localhost:$port" --processes="$n" --process="$i" "$@")
  if [ "$share" -gt 0 ]; then
    command=(env "CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${gpus[*]:i * share:share}")" "${command[@]}")
  fi
  if $dry_run; then
    quoted "${command[@]}"
    continue
  fi
  [ "$stopped" -eq 0 ] || break
  begun "${command[@]}"
  pids+=($!)
done
! $dry_run || exit 0
if [ "$stopped" -ne 0 ]; then # the signal may have come before the last one's number was known
  [ ${#pids[@]} -gt 0 ] || exit "$stopped"
  kill -TERM "${pids[@]}" 2>/dev/null
fi

# worse A B: whether code B tells more of what was first than A, where both were found at once: a signal ends no process but the first
worse() {
  [ "$1" -eq 0 ] || { [ "$1" -lt 128 ] && [ "$2" -gt 128 ]; }
}

code=0 killed=false
while [ ${#pids[@]} -gt 0 ]; do
  fault=0 who=
  for i in "${!pids[@]}"; do
    kill -0 "${pids[$i]}" 2>/dev/null && continue
    wait "${pids[$i]}"
    ended=$?
    unset "pids[$i]"
    if [ "$ended" -ne 0 ] && worse "$fault" "$ended"; then
      fault=$ended who=$i
    fi
  done
  if [ "$code" -eq 0 ] && [ "$fault" -ne 0 ]; then
    code=$fault
    how="ended with code $code"
    [ "$code" -gt 128 ] && [ "$code" -ne 130 ] && [ "$code" -ne 143 ] && how="was killed by signal $((code - 128)) (code $code)"
    [ "$code" -eq 143 ] || $killed || echo "ptmjax: process $who of 0 to $((n - 1)) $how: the others are ended" >&2
    # First they say themselves what they miss: that one gives no sign of life is known after HEARTBEAT seconds (distributed.py).
    if [ "$code" -eq 143 ]; then within "$grace"; else within 45; fi
  fi
  if [ "$end" -ne 0 ] && [ "$SECONDS" -ge "$end" ] && [ ${#pids[@]} -gt 0 ]; then
    $killed || [ "$code" -ne 0 ] ||
      echo "ptmjax: process $(IFS=,; echo "${!pids[*]}") of 0 to $((n - 1)) had not ended $grace s after the signal: killed" >&2
    killed=true
    kill -KILL "${pids[@]}" 2>/dev/null
  fi
  sleep 0.1
done
exit "$code"
