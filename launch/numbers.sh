#!/usr/bin/env bash
# What the tests measured, and the size of the house, as one JSON.   bash launch/numbers.sh [FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-numbers.json}")
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
PTMJAX_NUMBERS=$lines bash launch/test.sh -m "" tests/models tests/convert/test_real.py tests/systems tests/training tests/test_resume.py tests/test_processes.py >&2
.venv/bin/python tests/house.py "$lines" "$out"
echo "$out"
