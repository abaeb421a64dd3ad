# shellcheck shell=bash
# Sourced by the launch scripts: a virtual environment in the repository. Where setup.py, pyproject.toml or the extras change, what is new
# is installed into it; what else was put there stays.
# Call from the repository's root.  pip's own settings (PIP_INDEX_URL, PIP_FIND_LINKS, ...) are honoured.

# find_python NAME...: prints the first interpreter of these that is Python 3.11 .. 3.13 and can make an environment.
find_python() {
  local name
  for name in "$@"; do
    if "$name" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null &&
      { "$name" -c 'import ensurepip' 2>/dev/null || "$name" -c 'import pip' 2>/dev/null; }; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}

# some_python: the machine's own python3 where it is suitable, else the newest beside it, or one line that says what is missing.
some_python() {
  find_python python3 python3.13 python3.12 python3.11 && return 0
  echo "ptmjax: no Python 3.11, 3.12 or 3.13 with pip on PATH: install one (with its venv or pip package) and run this again" >&2
  return 1
}

# environment FOLDER EXTRAS PYTHON: EXTRAS is "" or "[test,parity]".  An environment with more extras serves one that needs fewer.
environment() {
  # Where it is called in a condition `set -e` is without effect: what fails must return.
  local folder=$1 extras=$2 python=$3 pip key place version stamp=""
  version=$("$python" --version) || return 1
  place="$version in $(pwd)"
  key=$(cat setup.py pyproject.toml | cksum | tr ' ' -)
  [ -f "$folder/stamp" ] && stamp=$(cat "$folder/stamp")
  case "$stamp" in
    "$place: ${key}[test,parity]" | "$place: $key$extras") return 0 ;;
    "$place: "*)
      echo "ptmjax: installing what ptmjax$extras needs besides into $folder" >&2
      [[ $stamp == *"[test,parity]" ]] && extras="[test,parity]"
      pip=("$folder/bin/python" -m pip)
      "${pip[@]}" --version >/dev/null 2>&1 || pip=("$python" -m pip --python "$folder/bin/python")
      "${pip[@]}" install --quiet --disable-pip-version-check --editable ".$extras" || return 1
      echo "$place: $key$extras" >"$folder/stamp"
      return 0
      ;;
  esac
  if [ -e "$folder" ] && [ ! -e "$folder/made-by-ptmjax" ]; then
    echo "ptmjax: $(pwd)/$folder is not an environment that ptmjax made: move it away and run this again" >&2
    return 1
  fi
  rm -rf "$folder" && mkdir "$folder" || return 1
  touch "$folder/made-by-ptmjax" || return 1 # before all else: an installation that was stopped is made anew
  echo "ptmjax: installing ptmjax$extras for $version into $folder: some minutes, the first time only" >&2
  if "$python" -c 'import ensurepip' 2>/dev/null; then
    "$python" -m venv "$folder" || return 1
    pip=("$folder/bin/python" -m pip)
  else # Debian without python3-venv: the interpreter's own pip installs into the environment
    "$python" -m venv --without-pip "$folder" || return 1
    pip=("$python" -m pip --python "$folder/bin/python")
  fi
  "${pip[@]}" install --quiet --disable-pip-version-check --editable ".$extras" || return 1
  echo "$place: $key$extras" >"$folder/stamp"
}
