# shellcheck shell=bash
# Code shared by the scripts: paths of the programs, and small helpers. Sourced, never run.
#
# The scripts work in a source tree (programs in build/release) and in a bundle (scripts/bundle),
# which has the same scripts/, bin/, lib/ and criu/. GCR_BUILD names another build folder.
# Code that tests run hundreds of times, as in scripts/hosts, starts as few processes as possible.

gcr_came_from=$PWD
cd -- "${BASH_SOURCE[0]%/*}/../.." || exit
gcr_root=$PWD
cd -- "$gcr_came_from" || exit
unset gcr_came_from
# shellcheck disable=SC2034  # used by scripts that source this
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
# shellcheck disable=SC2034  # the library that slurmd's own programs share in Debian packages
gcr_slurm_library=/usr/lib/$HOSTTYPE-linux-gnu/slurm-wlm/libslurmfull.so
# shellcheck disable=SC2034
gcr_bin=$gcr_prefix/bin
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH

say() { echo "${0##*/}: $*" >&2; }
fail() { say "$*"; exit 1; }

# Paths are used in lists that are separated by blanks, colons or semicolons.
[[ $gcr_root != *[[:space:]:\;\"\'\\\$\#%]* ]] ||
  fail "the path «$gcr_root» contains a blank or one of :;\"'\\\$#%: move the folder to a path without these"

# Checks a kind of GPU: software GPUs for CUDA (soft) or HIP (soft-hip), or this machine's NVIDIA (real) or AMD GPUs
# (hip).
need_gpu_kind() { [[ $1 =~ ^(soft|soft-hip|real|hip)$ ]] || fail "--gpu must be soft, soft-hip, real or hip, not $1"; }

need_root() { [[ $EUID == 0 ]] || fail "must run as root, for example by sudo"; }

# mount_run FOLDER: mounts a new /run there, a tmpfs with this machine's names of network namespaces, which must stay
# unique. Call it only in a separate mount namespace.
mount_run() {
  mount -t tmpfs -o mode=755 tmpfs "$1"
  mkdir -p /run/netns "$1"/{lock,netns}
  mount --bind /run/netns "$1/netns"
}

# Removes the build folder DIRECTORY if it was configured at another path: it would build that other tree.
remove_moved_build() {
  local origin
  [[ -e $1/CMakeCache.txt ]] || return 0
  origin=$(sed -n 's/^CMAKE_CACHEFILE_DIR:INTERNAL=//p' "$1/CMakeCache.txt")
  [[ $origin -ef $1 ]] && return 0
  say "$1 was configured as $origin: removing it for a new build"
  rm -rf "$1"
}

need_programs() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || fail "$program is missing: run scripts/install-deps"
  done
}

# Converts a size such as 512M or 8G to bytes.
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
  # The main thread may be dead while others live and keep files open.
  threads=(/proc/"$1"/task/*)
  ((${#threads[@]} > 1))
}

# wait_until SECONDS COMMAND…: waits until the command succeeds; fails after SECONDS.
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

# Ends a process by SIGTERM, after 10 s by SIGKILL; waits until it has ended.
end_process() {
  local pid=$1
  is_alive "$pid" || return 0
  kill -TERM "$pid" 2>/dev/null || true
  # Explicit status: in a trap, a bare return has the status of the command before the trap.
  wait_until 10 is_gone "$pid" && return 0
  kill -KILL "$pid" 2>/dev/null || true
  wait_until 10 is_gone "$pid" || say "process $pid does not end"
}

# ---- Programs on the hosts of scripts/hosts; needs its DIR/env sourced ----

# Runs COMMAND… on HOST (a or b), with the environment in which programs find its GPUs.
on_host() {
  local host=${1^^} namespace gpu_env
  shift
  namespace=NS_$host gpu_env=GPU_ENV_$host
  # shellcheck disable=SC2086  # words for env
  nsenter "--net=${!namespace}" env ${!gpu_env} "$@"
}

# Sends a UDP packet from HOST to ADDRESS:PORT and prints the answer; fails if there is none within 10 s.
ask() {
  local host=$1 address=$2 port=$3
  # shellcheck disable=SC2016
  on_host "$host" timeout 10 bash -c \
    'exec 3<>"/dev/udp/$0/$1" && printf . >&3 && dd bs=1500 count=1 status=none <&3' \
    "$address" "$port" 2>/dev/null
}

# Migrates PID from HOST to HOST by gcr-migrate, with its output.
migrate() {
  local from=IP_${1^^} to=IP_${2^^} pid=$3
  shift 3
  # shellcheck disable=SC2086  # options
  on_host a "$GCR_CLI" $GCR_TLS "$@" "${!from}" "${!to}" "$pid"
}

# field NAME LINE: prints the value of NAME=value in a line such as gcr-migrate's last one.
field() { sed -n "s/.*\\b$1=\\([^ ]*\\).*/\\1/p" <<<"$2"; }
