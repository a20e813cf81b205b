# shellcheck shell=bash
# What the scripts do with a cluster of scripts/slurm-hosts; needs common.sh and DIR/env sourced. Sourced, never run.
# shellcheck disable=SC2154  # of those

# Asks slurmctld: a Slurm command.
ask_slurm() { on_host "$CONTROLLER" env "SLURM_CONF=$SLURM_CONF" "$@"; }

# What Slurm calls HOST.
node_of() { local name=NODE_${1^^}; echo "${!name}"; }

# Whether Slurm has no job on HOST.
is_empty() { [[ -z $(ask_slurm squeue --noheader --nodelist "$(node_of "$1")") ]]; }

# submit_program HOST OUTPUT GPUS MEMORY COMMAND…: a job that can be moved; prints its number.
submit_program() {
  local host=$1 output=$2 gpus=$3 memory=$4
  shift 4
  printf '#!/bin/sh\nexec %s\n' "$*" |
    ask_slurm sbatch --parsable --migratable --gres "gpu:$gpus" --mem "$memory" --nodelist "$(node_of "$host")" \
      --job-name "$(basename "$1")" --output "$output" --open-mode append
}

# Drains HOST by Slurm: the last line of what it prints says what went where.
drain_node() {
  local node slurm
  node=$(node_of "$1") slurm=${SLURM_CONF%/*}
  ask_slurm scontrol update node="$node" state=drain reason="$0"
  # shellcheck disable=SC2086  # options
  ask_slurm env "GCR_CLI=$GCR_CLI" "$gcr_root/scripts/drain" "$node" --slurm $GCR_TLS --interval 1 \
    --wait-program "$gcr_bin/gcr-slurm-wait" --folder "$slurm/%n.jobs"
}
