#!/usr/bin/env bash
# A training run of N processes on this machine.   bash launch/processes.sh [--dry_run] [--grace=S] N [arguments of `ptmjax train`]
# Where a process ends with a fault it is named, the others are ended, and its exit code is this one's. The same command goes on from
# the last checkpoint. SIGTERM goes to all of them: they save a step together and this ends with 143. PTMJAX_PYTHON: another
# interpreter than that of .venv. Where there are N GPUs or more (CUDA_VISIBLE_DEVICES, or as nvidia-smi tells), each process has as many
# as any other, of its own. --dry_run prints the processes' commands and starts none. --grace: seconds that a save may take after SIGTERM
# (120) before what is left is killed.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=launch/launching.sh
source "$root/launch/launching.sh"
pids=() stopped=false
trap 'stopped=true; [ ${#pids[@]} -eq 0 ] || kill -TERM "${pids[@]}" 2>/dev/null' TERM
trap : INT # a terminal sends it to the processes too
dry_run=false grace=120
while [[ ${1:-} == --dry_run || ${1:-} == --grace=* ]]; do
  if [ "$1" = --dry_run ]; then dry_run=true; else grace=${1#*=}; fi
  shift
done
counted grace
n=${1:-}
if ! [[ $n =~ ^[1-9][0-9]{0,3}$ ]]; then
  echo "ptmjax: launch/processes.sh begins with how many processes: bash launch/processes.sh 2 --gin_file=bert_demo.gin --workdir=runs/two" >&2
  exit 2
fi
shift

interpreter=${PTMJAX_PYTHON:-$root/.venv/bin/python}
if [ -z "${PTMJAX_PYTHON:-}" ] && ! $dry_run; then
  (cd "$root" && source launch/env.sh && found=$(some_python) && environment .venv "" "$found") || exit 2
fi
port=PORT
if ! $dry_run; then
  port=$("$interpreter" -c 'import socket; s = socket.socket(); s.bind(("localhost", 0)); print(s.getsockname()[1])') || exit 2
fi

IFS=, read -r -a gpus <<<"${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | paste -sd ,)}"
share=$((${#gpus[@]} / n))
for ((i = 0; i < n; i++)); do
  command=("$interpreter" -m ptmjax train --coordinator="localhost:$port" --processes="$n" --process="$i" "$@")
  if [ "$share" -gt 0 ]; then
    command=(env "CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${gpus[*]:i * share:share}")" "${command[@]}")
  fi
  if $dry_run; then
    printf '%q ' "${command[@]}"
    echo
    continue
  fi
  ! $stopped || break
  "${command[@]}" &
  pids+=($!)
done
$dry_run && exit 0
if $stopped; then # the signal may have come before the last one's number was known
  [ ${#pids[@]} -gt 0 ] || exit 143
  kill -TERM "${pids[@]}" 2>/dev/null
fi

# worse A B: whether code B tells more of what was first than A, where both were found at once: a signal ends no process but the first
worse() {
  [ "$1" -eq 0 ] || { [ "$1" -lt 128 ] && [ "$2" -gt 128 ]; }
}

code=0 end=0
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
    [ "$code" -ne 143 ] && echo "ptmjax: process $who of 0 to $((n - 1)) $how: the others are ended" >&2
    end=$((SECONDS + (code == 143 ? grace : 15))) # first they say themselves what they miss
  fi
  if [ "$code" -ne 0 ] && [ "$SECONDS" -ge "$end" ] && [ ${#pids[@]} -gt 0 ]; then
    kill -KILL "${pids[@]}" 2>/dev/null
  fi
  sleep 0.1
done
exit "$code"
