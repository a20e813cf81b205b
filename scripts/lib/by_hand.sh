# shellcheck shell=bash
# shellcheck disable=SC2154  # gcr_bin is of common.sh; gpu and work are of those who source this
# What the ways by hand share: the driver's checkpoint steps by helpers that wait, and how long a
# program prints nothing. Sourced after common.sh and DIR/env of scripts/hosts; needs gpu, and a
# folder work.

milliseconds() { local now=${EPOCHREALTIME/,/.}; echo $((${now/./} / 1000)); }
more_lines() { (($(wc -l <"$1") > $2)); }

# await_lines FILE COUNT SECONDS WHAT: until that many lines were added.
await_lines() {
  local before
  before=$(wc -l <"$1")
  wait_until "$3" more_lines "$1" "$((before + $2 - 1))" || fail "$4: $(tail -n 3 "$1")"
}

# Watches the output of program NAME, from the first line on that it sees; end_watch sets gap_ms.
watch_pid=''
start_watch() {
  "$gcr_bin/output-gap" "$work/$1.out" >"$work/gap.txt" &
  watch_pid=$!
  wait_until 10 grep -q ready "$work/gap.txt"
  await_lines "$work/$1.out" 1 60 "$1 prints nothing"
}
end_watch() {
  await_lines "$work/$1.out" 5 120 "$1 does not go on"
  kill -TERM "$watch_pid"
  wait "$watch_pid" || true
  watch_pid=''
  # shellcheck disable=SC2034  # used by those who source this
  gap_ms=$(tail -n 1 "$work/gap.txt")
}

# Where the helpers of the hosts read and write.
declare -A tool_in=([a]=3 [b]=5) tool_out=([a]=4 [b]=6)

# step HOST NAME PID: one step of the driver's checkpoint API, by the helper that waits for it.
step() {
  local answer
  echo "$2 $3" >&"${tool_in[$1]}"
  read -r answer <&"${tool_out[$1]}" || answer='the checkpoint helper ended'
  [[ $answer == "$2 ok "* ]] || fail "by hand: $answer"
  printf '%-12s %s ms\n' "$2" "${answer##* }" >>"$work/by-hand.txt"
}

# start_tools HOST…: their helpers, which have initialised the driver when this returns.
start_tools() {
  local maps=() host answer=''
  if [[ $gpu == soft ]]; then maps=(--map "$(first_gpu "$GPU_ENV_A")=$(first_gpu "$GPU_ENV_B")"); fi
  (($# > 1)) || maps=()
  for host in "$@"; do
    mkfifo "$work/in-$host" "$work/out-$host"
    on_host "$host" "$gcr_bin/cuda-checkpoint-tool" "${maps[@]}" <"$work/in-$host" \
      >"$work/out-$host" 2>>"$work/by-hand.log" &
    eval "exec ${tool_in[$host]}>$work/in-$host ${tool_out[$host]}<$work/out-$host"
  done
  for host in "$@"; do
    read -r -t 60 answer <&"${tool_out[$host]}" || true
    [[ $answer == ready ]] ||
      fail "the checkpoint helper of host $host does not start: $(cat "$work/by-hand.log")"
  done
}
# The UUID of the first software GPU in the words for env given.
first_gpu() {
  local devices=${1#*SOFTGPU_DEVICES=}
  echo "${devices%%:*}"
}

# note NAME START: how long a phase took.
note() { printf '%-12s %s ms\n' "$1" $(($(milliseconds) - $2)) >>"$work/by-hand.txt"; }
# The phases noted, as words for bench_figures record: dump_ms=…
noted() { awk '{ gsub("-", "_", $1); print $1 "_ms=" $2 }' "$work/by-hand.txt"; }
