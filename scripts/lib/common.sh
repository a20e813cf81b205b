# shellcheck shell=bash
# What the scripts share: where the programs are, and small helpers. Sourced, never run.
#
# The scripts work in a source tree (programs in build/release) and in a bundle (scripts/bundle),
# which has the same scripts/ next to bin/, lib/ and criu/. GCR_BUILD names another build folder.
# What runs hundreds of times, as scripts/hosts in tests, starts as few processes as it can.

gcr_came_from=$PWD
cd -- "${BASH_SOURCE[0]%/*}/../.." || exit
gcr_root=$PWD
cd -- "$gcr_came_from" || exit
unset gcr_came_from
# shellcheck disable=SC2034  # used by those who source this
if [[ -n ${GCR_BUILD:-} || ! -x $gcr_root/bin/migrate-agent ]]; then
  gcr_is_bundle=no
  gcr_prefix=${GCR_BUILD:-$gcr_root/build/release}
  gcr_softgpu=$gcr_prefix/tests/softgpu
  gcr_criu=${GCR_DEPS_DIR:-$gcr_root/build/deps}/criu/criu
else
  gcr_is_bundle=yes
  gcr_prefix=$gcr_root
  gcr_softgpu=$gcr_prefix/softgpu
  gcr_criu=$gcr_root/criu/criu
  PATH=$PATH:$gcr_root/tools
fi
# shellcheck disable=SC2034  # what slurmd's own programs share, in Debian's packages
gcr_slurm_library=/usr/lib/$HOSTTYPE-linux-gnu/slurm-wlm/libslurmfull.so
# shellcheck disable=SC2034
gcr_bin=$gcr_prefix/bin
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH

say() { echo "${0##*/}: $*" >&2; }
fail() { say "$*"; exit 1; }

# Paths go into lists of words, paths and variables.
[[ $gcr_root != *[[:space:]:\;\"\'\\\$\#%]* ]] ||
  fail "«$gcr_root» has blanks or one of :;\"'\\\$#% in it: move it to a path without"

# The kinds of GPU that the scripts know: in software for CUDA (soft) and for HIP (soft-hip), and this
# machine's own, NVIDIA's (real) and AMD's (hip).
need_gpu_kind() { [[ $1 =~ ^(soft|soft-hip|real|hip)$ ]] || fail "--gpu is soft, soft-hip, real or hip, not $1"; }

need_root() { [[ $EUID == 0 ]] || fail "must run as root, for example by sudo"; }

# For a shell with a mount namespace of its own: mounts a new /run at FOLDER, a tmpfs with the names of this machine's
# network namespaces, of which each is taken once.
mount_run() {
  mount -t tmpfs -o mode=755 tmpfs "$1"
  mkdir -p /run/netns "$1"/{lock,netns}
  mount --bind /run/netns "$1/netns"
}

# Removes the build folder DIRECTORY if it was configured at another path: it would build what is there.
remove_moved_build() {
  local origin
  [[ -e $1/CMakeCache.txt ]] || return 0
  origin=$(sed -n 's/^CMAKE_CACHEFILE_DIR:INTERNAL=//p' "$1/CMakeCache.txt")
  [[ $origin -ef $1 ]] && return 0
  say "$1 was configured as $origin: building anew"
  rm -rf "$1"
}

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

is_alive() {
  local line threads
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  [[ ${line##*) } == Z* ]] || return 0
  # The first of several threads may be dead before the others, which hold the files.
  threads=(/proc/"$1"/task/*)
  ((${#threads[@]} > 1))
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
  # Said outright: in a trap, a bare return has the status of what came before the trap.
  wait_until 10 is_gone "$pid" && return 0
  kill -KILL "$pid" 2>/dev/null || true
  wait_until 10 is_gone "$pid" || say "process $pid does not end"
}

# ---- programs on the hosts of scripts/hosts; needs its DIR/env sourced ----

# Runs COMMAND… on HOST (a or b), with what a program there needs to find its GPU.
on_host() {
  local host=${1^^} namespace gpu_env
  shift
  namespace=NS_$host gpu_env=GPU_ENV_$host
  # shellcheck disable=SC2086  # words for env
  nsenter "--net=${!namespace}" env ${!gpu_env} "$@"
}

# Sends a packet from HOST to ADDRESS:PORT by UDP and prints the answer; 1 if none comes in 10 s.
ask() {
  local host=$1 address=$2 port=$3
  # shellcheck disable=SC2016
  on_host "$host" timeout 10 bash -c \
    'exec 3<>"/dev/udp/$0/$1" && printf . >&3 && dd bs=1500 count=1 status=none <&3' \
    "$address" "$port" 2>/dev/null
}

# Migrates PID from HOST to HOST; prints what gcr-migrate prints.
migrate() {
  local from=IP_${1^^} to=IP_${2^^} pid=$3
  shift 3
  # shellcheck disable=SC2086  # options
  on_host a "$GCR_CLI" $GCR_TLS "$@" "${!from}" "${!to}" "$pid"
}

# field NAME LINE: the value of NAME=value in a line such as gcr-migrate's last one.
field() { sed -n "s/.*\\b$1=\\([^ ]*\\).*/\\1/p" <<<"$2"; }
