#!/usr/bin/env bash
# A training on all workers of a Cloud TPU VM: copies this repository there, installs it, and starts the same command on every worker,
# again after whatever it goes on from (launch/again.sh), whether or not you stay connected.
#   bash launch/tpu_vm.sh --tpu=NAME --zone=us-east5-a -- --gin_file=t5_base.gin --workdir=gs://bucket/run --gin.Experiment.mesh='"fsdp=-1"'
#   bash launch/tpu_vm.sh --tpu=NAME --zone=us-east5-a --action=log       # the last lines of every worker
#   bash launch/tpu_vm.sh --tpu=NAME --zone=us-east5-a --action=stop      # a step is saved; the first command goes on from there
# --project=ID        of Google Cloud, if not gcloud's own
# --setup=COMMAND     run on every worker before the installation, for example to get Python 3.11 to 3.13 where the image lacks it
# --files=FOLDER      what lies in it is copied into the folder that the training runs in: a gin file of yours, modules that it imports.
#                     What an earlier call has copied there is removed; run.log, .venv and what else has come to lie there stay
# --restarts=N        how often a worker starts it again at most (100)
# --idle=N            after how many attempts in a row that came to nothing it gives up (5): where one worker has ended with a fault of its
#                     user, the others wait for it in vain; --action=log shows which
# --dry_run           print what would be called and call nothing
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=launch/launching.sh
source "$here/launching.sh"
tpu="" zone="" project="" action=start setup=: files="" restarts=100 idle=5
given "tpu zone project action setup files restarts idle" "$@"
needed tpu zone
counted restarts idle
$dry_run || runnable gcloud
on=(--zone="$zone" --worker=all)
[ -z "$project" ] || on+=(--project="$project")

# call COMMAND...: as it stands, or printed.
call() {
  if $dry_run; then quoted "$@"; else "$@"; fi
}

# workers SHELL: run on all of them.
workers() {
  call gcloud compute tpus tpu-vm ssh "$tpu" "${on[@]}" --command="$1"
}

case $action in
  log) workers 'tail -n 20 ptmjax/run.log' ;;
  # By its number, if the process of that number is the one that was started: after a restart of the machine it may be any other.
  stop) workers 'cd ptmjax || exit; ! flock -n run.lock true || { echo "ptmjax: no run is there"; exit; }
pkill -TERM -F run.pid -f launch/again.sh || { echo "ptmjax: no launch/again.sh has the number in run.pid, yet something of the run is alive: see ps -ef" >&2; exit 2; }' ;;
  start)
    named_workdir
    [[ $workdir == gs://?* ]] || fault "--workdir=gs://... is missing behind --: a folder that all workers see"
    [ -z "$files" ] || [ -d "$files" ] || fault "--files=$files is no folder"
    folder=/tmp
    if ! $dry_run; then
      folder=$(mktemp -d)
      trap 'rm -r "$folder"' EXIT
    fi
    call tar -czf "$folder/ptmjax.tar.gz" --exclude={__pycache__,./.venv,./.copied,./run.{log,lock,pid}} -C "$here/.." ptmjax tasks gin launch setup.py pyproject.toml README.md LICENSE NOTICE \
      ${files:+-C "$(realpath "$files")" .}
    call gcloud compute tpus tpu-vm scp "$folder/ptmjax.tar.gz" "$tpu:ptmjax.tar.gz" "${on[@]}"
    # The lock is held by whatever of the run is alive. What is copied is unpacked beside, whole, before it takes the place of what was.
    workers "set -e; mkdir -p ptmjax; cd ptmjax; exec 9>run.lock; flock -n 9 || { echo 'ptmjax: a run is there already: --action=stop' >&2; exit 2; }
rm -rf run.pid .fresh; mkdir .fresh; tar -xzf ../ptmjax.tar.gz -C .fresh
find .fresh -mindepth 1 -maxdepth 1 -printf '%f\\0' >.now; cat .now >>.copied; xargs -0 rm -rf -- <.copied
find .fresh -mindepth 1 -maxdepth 1 -exec mv -t . -- {} +; rmdir .fresh; mv .now .copied
$setup
source launch/env.sh; python=\$(some_python); environment .venv '[tpu]' \"\$python\" 9>&-
nohup bash launch/again.sh --restarts=$restarts --idle=$idle -- .venv/bin/python -m ptmjax train --distributed $(quoted "${arguments[@]}") >>run.log 2>&1 </dev/null &
echo \$! >run.pid"
    ;;
  *) fault "--action=$action: it is start, log or stop" ;;
esac
