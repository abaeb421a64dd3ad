# shellcheck shell=bash
# shellcheck disable=SC2034  # dry_run, arguments and code are for who sources this
# Sourced by the launchers: their options, and which exit codes go on.

# A fault of who calls: one line, code 2.
fault() {
  echo "ptmjax: error: $*" >&2
  exit 2
}

# The comment block on top of the script.
usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}

# given "NAME ..." "$@": --NAME=VALUE into the variable NAME, --dry_run into dry_run, what stands behind -- into arguments.
given() {
  local _names=" $1 " _name # not the name of any option
  shift
  dry_run=false arguments=()
  while [ $# -gt 0 ]; do
    _name=${1%%=*}
    _name=${_name#--}
    case $1 in
      --) break ;;
      --dry_run) dry_run=true ;;
      -h | --help)
        usage
        exit 0
        ;;
      --*=*) [[ $_names == *" $_name "* ]] || fault "no option $1: $0 --help tells those that are; arguments of the training stand behind --" ;;&
      --*=*) printf -v "$_name" %s "${1#*=}" ;;
      *) fault "what is $1? $0 --help tells the options, which are --NAME=VALUE; arguments of the training stand behind --" ;;
    esac
    shift
  done
  [ $# -eq 0 ] || shift
  arguments=("$@")
}

# needed NAME...: these options were given.
needed() {
  local _name
  for _name in "$@"; do
    [ -n "${!_name}" ] || fault "--$_name is missing: $0 --help"
  done
}

# counted NAME...: these are whole numbers from 1 on.
counted() {
  local _name
  for _name in "$@"; do
    [[ ${!_name} =~ ^[1-9][0-9]{0,8}$ ]] || fault "--$_name=${!_name} is no number from 1 on"
  done
}

# quoted WORD...: a line of shell that gives these words.
quoted() {
  local line
  printf -v line '%q ' "$@"
  printf '%s\n' "${line% }"
}

# goes_on CODE: whether the same command goes on from the last checkpoint by being called again: SIGTERM (143), a process that is gone
# (75; 134 where jax sees it first), kill -9 or no memory (137). Never on a fault that its user must mend (2), or one of the code (1).
goes_on() {
  case $1 in
    75 | 134 | 137 | 143) return 0 ;;
    *) return 1 ;;
  esac
}

# awaited PID: its exit code, in code. A signal that has a trap cuts `wait`, which then tells the signal's code and not the process'.
awaited() {
  local ended
  code=127 signalled=true
  while $signalled; do
    signalled=false
    wait "$1"
    ended=$?
    [ "$ended" -eq 127 ] || code=$ended # 127: it was told the first time
  done
}
