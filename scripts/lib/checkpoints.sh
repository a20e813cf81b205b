# shellcheck shell=bash
# shellcheck disable=SC2154  # work and dir are of those who source this
# Checkpoints on the hosts of scripts/hosts, and a file system for them. Sourced after common.sh;
# needs DIR/env of scripts/hosts, a folder work, and dir: where checkpoints go, or empty.

# make_store BYTES: sets store, an empty folder in dir, or in a tmpfs of that size if dir is empty;
# and store_type, the type of its file system. remove_store removes it.
store='' store_type=''
make_store() {
  if [[ -n $dir ]]; then
    store=$(mktemp -d "$dir/gcr-checkpoints-XXXXXX")
  else
    store=$work/store
    mkdir "$store"
    mount -t tmpfs -o "size=$1,mode=700" gcr-checkpoints "$store"
  fi
  store_type=$(stat -f -c %T "$store")
  say "checkpoints are in a file system of type $store_type ($(df -h --output=source,size,avail "$store" | tail -n 1))"
}
remove_store() {
  [[ -n $store ]] || return 0
  [[ -n $dir ]] || umount -l "$store" 2>/dev/null || true
  rm -rf "$store"
}

# checkpoint HOST PID DIR REPORT [OPTION…]: the report goes to REPORT, messages to REPORT.log.
checkpoint() {
  local host=$1 address=IP_${1^^} pid=$2 target=$3 report=$4
  shift 4
  # shellcheck disable=SC2086  # options
  on_host "$host" "$GCR_CLI" checkpoint $GCR_TLS --json --quiet "$@" "${!address}" "$pid" "$target" \
    >"$report" 2>"$report.log"
}

# restore HOST DIR REPORT [OPTION…]: the newest.
restore() {
  local host=$1 address=IP_${1^^} target=$2 report=$3
  shift 3
  # shellcheck disable=SC2086  # options
  on_host "$host" "$GCR_CLI" restore $GCR_TLS --json --quiet "$@" "${!address}" "$target" \
    >"$report" 2>"$report.log"
}

# Until FILE, which was emptied, has something; looks every few milliseconds.
wait_until_line() {
  local end=$((SECONDS + 120))
  until [[ -s $1 ]]; do
    ((SECONDS < end)) || return 1
    sleep 0.005
  done
}
