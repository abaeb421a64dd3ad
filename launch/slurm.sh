#!/usr/bin/env bash
# A training on the GPUs of a SLURM cluster: queues a job that is queued again until the training is complete, or a fault is its user's.
#   bash launch/slurm.sh --nodes=2 --gpus=8 -- --gin_file=bert_base.gin --workdir=/shared/run --gin.Experiment.mesh='"data=-1,fsdp=8"'
# --nodes=N --gpus=N   how many nodes, and GPUs of each (1, 1): a process a GPU, as jax has it under SLURM, where it takes the one GPU
#                      of the process' number on its node (so a process a node would leave all others idle)
# --cpus=N             cores of each process (8): SLURM keeps it to these
# --time=[D-]HH:MM:SS  of the job, after which it is queued again (24:00:00)
# --name=NAME          of the job (ptmjax); --log=FILE of what it prints (NAME-JOB.log, here)
# --restarts=N         how often the job is queued again at most (100); a fault of its user in one process (2), or of the code, ends it,
#                      whatever the others say of it
# --grace=S            seconds before its end at which the job gets SIGTERM (120), and in which its step is saved
# --dry_run            print what would be called and queue nothing
# Partition and account: SBATCH_PARTITION, SBATCH_ACCOUNT and what else sbatch reads. Interpreter: that of .venv, or PTMJAX_PYTHON; it
# and the work folder must lie where all nodes see them.
set -uo pipefail
inside=false here=$(cd "$(dirname "$0")" && pwd)
if [ "${1:-}" = --inside ]; then # SLURM runs a copy of this file that lies elsewhere
  inside=true here=$2
  shift 2
fi
# shellcheck source=launch/launching.sh
source "$here/launching.sh"
nodes=1 gpus=1 cpus=8 time=24:00:00 name=ptmjax log='%x-%j.log' restarts=100 grace=120
given "nodes gpus cpus time name log restarts grace" "$@"
counted nodes gpus cpus restarts grace
python=${PTMJAX_PYTHON:-$here/../.venv/bin/python}

# srun's code is the greatest of its processes'. So that a fault wins over what the others say of the process that had it, 1 and 2 are
# told as 201 and 202. SIGTERM comes to this shell too, which must outlive it.
# shellcheck disable=SC2016
one='trap : TERM; "$@"; code=$?; [ "$code" -ne 1 ] && [ "$code" -ne 2 ] || exit $((200 + code)); exit "$code"'
# Every process sees all GPUs of its node (jax takes its own by number). One that ends does not end the others: they say what they miss.
step=(srun --cpus-per-task="$cpus" --gpu-bind=none --kill-on-bad-exit=0 --wait=0 bash -c "$one" ptmjax "$python" -m ptmjax train --distributed "${arguments[@]}")

if ! $inside; then
  [ ${#arguments[@]} -gt 0 ] || fault "no training: write the arguments of ptmjax train behind --"
  [[ $time =~ ^(([0-9]{1,3})-)?([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])$ ]] || fault "--time=$time is not HH:MM:SS, or D-HH:MM:SS"
  [ $((((10#0${BASH_REMATCH[2]} * 24 + 10#${BASH_REMATCH[3]}) * 60 + 10#${BASH_REMATCH[4]}) * 60 + 10#${BASH_REMATCH[5]})) -gt $((grace + 60)) ] ||
    fault "--time=$time leaves no time to train: SIGTERM comes --grace=$grace seconds before its end, and SLURM may send it 60 s early"
  [[ $name != */* ]] || fault "--name=$name is no name of a job: leave out the /"
  [[ $log == *%*/* || -d $(dirname -- "$log") ]] || fault "--log=$log: make its folder first, SLURM does not and then tells nothing"
  command=(sbatch --job-name="$name" --nodes="$nodes" --gpus-per-node="$gpus" --ntasks-per-node="$gpus" --cpus-per-task="$cpus"
    --time="$time" --output="$log" --open-mode=append --requeue --signal="B:TERM@$grace"
    "$here/slurm.sh" --inside "$here" --cpus="$cpus" --restarts="$restarts" -- "${arguments[@]}")
  if $dry_run; then
    quoted "${command[@]}"
    quoted "${step[@]}"
    exit 0
  fi
  runnable sbatch
  runnable "$python" "bash launch/local.sh makes that of .venv, or let PTMJAX_PYTHON name another"
  exec "${command[@]}"
fi

trap 'signalled=true; scancel --signal=TERM "$SLURM_JOB_ID"' TERM # to the processes of the step, not to this shell
"${step[@]}" &
awaited $!
[ "$code" -ne 201 ] && [ "$code" -ne 202 ] || code=$((code - 200))
if goes_on "$code" && [ "${SLURM_RESTART_COUNT:-0}" -lt "$restarts" ] &&
  [ "$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID")" = RUNNING ]; then # not where someone has cancelled it
  echo "ptmjax: ended with code $code: the job is queued again" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
