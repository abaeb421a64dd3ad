# shellcheck shell=bash
# shellcheck disable=SC2034  # dry_run, arguments, workdir and code are for who sources this
# Sourced by the launchers: their options, and which exit codes go on.

# A fault of who calls: one line, code 2.
fault() {
  echo "ptmjax: error: ${*//$'\n'/\\n}" >&2
  exit 2
}

# The comment block on top of the script.
usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}

# given "NAME ..." "$@": --NAME=VALUE into the variable NAME, --dry_run into dry_run, what stands behind -- into arguments. Where a
# launcher has another word than --, it is $behind.
given() {
  local _names=" $1 " _name _behind="arguments of the training stand behind ${behind:---}" # not the names of any options
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
      --*=*) [[ $_names == *" $_name "* ]] || fault "no option $1: $0 --help tells those that are; $_behind" ;;&
      --*=) fault "${1%=}: its value is missing: $0 --help" ;;
      --*=*) printf -v "$_name" %s "${1#*=}" ;;
      *) fault "what is $1? $0 --help tells the options, which are --NAME=VALUE; $_behind" ;;
    esac
    shift
  done
  [ $# -eq 0 ] || shift
  arguments=("$@")
}

# runnable NAME [HOW TO MEND IT]: there is a program of that name on PATH, or at that path.
runnable() {
  type -P -- "$1" >/dev/null || fault "there is no program $1: ${2:-install it, or add its folder to PATH}"
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

# named_workdir: the work folder that the arguments of the training name, as ptmjax reads them, in workdir.
named_workdir() {
  local _i
  workdir=""
  for ((_i = 0; _i < ${#arguments[@]}; _i++)); do
    case ${arguments[_i]} in
      --workdir=*) workdir=${arguments[_i]#*=} ;;
      --workdir) workdir=${arguments[_i + 1]-} ;;
    esac
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

# begun COMMAND...: starts a program, whose number is $!. Ctrl-C ends it, though a shell has what it starts beside itself ignore that. A
# terminal that is closed does not: that is for the launcher to tell, by SIGTERM.
begun() {
  (
    trap - INT
    trap '' HUP
    exec "$@"
  ) &
}

# awaited PID: its exit code, in code. A signal that has a trap cuts `wait`, which then tells the signal's code and not the process'. Where
# both come at once bash may have lost that of the process (127, or -1): then it is what such a signal makes of a run, 130 or 143.
awaited() {
  local ended
  code=127 signalled=true
  while $signalled; do
    signalled=false
    wait "$1"
    ended=$?
    [ "$ended" -eq 127 ] || [ "$ended" -lt 0 ] || code=$ended
  done
  [ "$code" -ne 129 ] || code=143
}
