#!/usr/bin/env bash
# The main job, end to end, on this machine: four hosts come up, are checked, train together, vanish.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
name=demo-$$
started=$SECONDS
step() { printf '\n[%3d s] $ %s\n' $((SECONDS - started)) "$*"; "$@"; }
trap 'clusterctl down --name "$name" --yes >/dev/null 2>&1 || true' EXIT

echo "Four hosts on this machine, each with its own address, processes, disk and sshd; a real mpirun over"
echo "real ssh. What is simulated is only that they share one machine and its silicon."
step clusterctl up --name "$name" --nodes 4
step clusterctl check-amx --name "$name" || echo "(no AMX here: require_amx is false, the training uses what there is)"
step clusterctl train run_qa --name "$name"
step clusterctl down --name "$name" --yes
trap - EXIT
printf '\n[%3d s] done: the model and its logs are under runs/\n' $((SECONDS - started))
