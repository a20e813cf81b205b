# shellcheck shell=bash
# What the scripts share: where the programs are, and small helpers. Sourced, never run.
#
# The scripts work in a source tree (programs in build/release) and in a bundle (scripts/bundle),
# which has the same scripts/ beside bin/, lib/ and criu/. GCR_BUILD names another build folder.

gcr_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [[ -n ${GCR_BUILD:-} || ! -x $gcr_root/bin/migrate-agent ]]; then
  gcr_prefix=${GCR_BUILD:-$gcr_root/build/release}
  gcr_criu=${GCR_DEPS_DIR:-$gcr_root/build/deps}/criu/criu
else
  gcr_prefix=$gcr_root
  gcr_criu=$gcr_root/criu/criu
  PATH=$gcr_root/tools:$PATH
fi
# shellcheck disable=SC2034  # used by those who source this
{
  gcr_bin=$gcr_prefix/bin
  gcr_softgpu=$gcr_prefix/softgpu
}
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH

say() { echo "${0##*/}: $*" >&2; }
fail() { say "$*"; exit 1; }

need_root() { [[ $(id -u) == 0 ]] || fail "must run as root"; }

need_programs() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || fail "$program is missing: run scripts/install-deps"
  done
}

# "512M", "8G" -> bytes.
bytes_of() {
  local number=${1%[KMG]} unit=1
  [[ $number =~ ^[0-9]+$ ]] || fail "not a size: $1 (use for example 512M or 8G)"
  case $1 in
    *K) unit=$((1 << 10)) ;;
    *M) unit=$((1 << 20)) ;;
    *G) unit=$((1 << 30)) ;;
  esac
  echo $((number * unit))
}

is_alive() { [[ -e /proc/$1/stat && $(process_state "$1") != Z ]]; }

# One letter, as in ps; Z for what is gone.
process_state() {
  local line
  line=$(cat "/proc/$1/stat" 2>/dev/null) || { echo Z; return; }
  line=${line##*) }
  echo "${line%% *}"
}

# Waits until COMMAND… succeeds, at most SECONDS; 1 if it never does.
wait_until() {
  local seconds=$1 end
  shift
  end=$((SECONDS + seconds))
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.05
  done
}

is_gone() { ! is_alive "$1"; }

# Ends a process politely, then not; waits until it is gone.
end_process() {
  local pid=$1
  is_alive "$pid" || return 0
  kill -TERM "$pid" 2>/dev/null || true
  wait_until 10 is_gone "$pid" && return
  kill -KILL "$pid" 2>/dev/null || true
  wait_until 10 is_gone "$pid" || say "process $pid does not end"
}
