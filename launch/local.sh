#!/usr/bin/env bash
# A small BERT on the shipped text, on whatever this machine has.   bash launch/local.sh [--gin.STEPS=1000 and other settings of `ptmjax train`]
# A second call goes on where the first stopped, or says that the run is done.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/env.sh

python=$(some_python)
environment .venv "" "$python"
.venv/bin/python -m ptmjax train --gin_file=bert_demo.gin --workdir=runs/demo "$@"
.venv/bin/python -m ptmjax fill --workdir=runs/demo \
  "the united [MASK] of america" \
  "the children of [MASK] went up" \
  "in the name of the [MASK]" \
  "he looked at [MASK] and smiled" \
  "it was dark in the [MASK]" \
  "a boat with a [MASK] in it"
echo "ptmjax: the command is .venv/bin/ptmjax: source .venv/bin/activate, then ptmjax --help" >&2
