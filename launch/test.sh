#!/usr/bin/env bash
# The tests, from nothing but Python 3.11+ and pip.   bash launch/test.sh [--all] [pytest arguments]
#   --all   also the tests marked slow, flax's other graph mode, Apache Beam, and Python 3.13 with its newest jax where it is installed
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/env.sh

all=false
if [ "${1:-}" = --all ]; then
  all=true
  shift
fi
export JAX_PLATFORMS=cpu TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}" TOKENIZERS_PARALLELISM=false
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}" # a worker a core already
workers=$(getconf _NPROCESSORS_ONLN)
[ "$workers" -gt 8 ] && workers=8 # each holds jax and tensorflow: about 1.5 GiB
run=(-m pytest -q -n "$workers" --dist worksteal)

python=$(some_python)
environment .venv "[test,parity]" "$python"
if ! $all; then
  exec .venv/bin/python "${run[@]}" "$@"
fi

run+=(--durations=10)
status=0
hard=tests/systems/test_overfit.py # hundreds of steps of the demos' size: in the second part, which compiles them well
.venv/bin/python "${run[@]}" -m "" --ignore=$hard "$@" || status=$?
# The rest of the matrix. Flax's graph mode shows where modules are made and run; XLA's full optimisation is how users compile them.
echo "ptmjax: again with NNX_GRAPH_MODE=false, and with XLA's full optimisation" >&2
NNX_GRAPH_MODE=false PTMJAX_FULL_XLA=1 .venv/bin/python "${run[@]}" -m "" $hard tests/nn tests/models tests/training/test_step.py "$@" || status=$?
environment .venv-beam "[test,beam]" "$python" # apart: Beam holds protobuf and pyarrow back
.venv-beam/bin/python -m pytest -q -m "" tests/beam || status=$?
if .venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))'; then
  echo "ptmjax: the run above was Python 3.13 already" >&2
elif newest=$(find_python python3.13); then
  environment .venv313 "[test]" "$newest"
  core=(tests/nn tests/models tests/objectives tests/parallel tests/training tests/systems)
  PTMJAX_WITHOUT_TORCH=1 .venv313/bin/python "${run[@]}" "${core[@]}" "$@" || status=$?
else
  echo "ptmjax: no python3.13 on PATH: that part of the matrix did not run" >&2
fi
exit "$status"
