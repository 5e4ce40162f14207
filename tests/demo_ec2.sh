#!/usr/bin/env bash
# The same story on a simulated EC2: nodes come up, are checked, train, grow, shrink, vanish; the account is empty.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
folder=$(mktemp -d)
name=demo-ec2-$$
started=$SECONDS
world() { python -m tests.ec2sim "$@"; }
step() { printf '\n[%3d s] $ %s\n' $((SECONDS - started)) "$*"; world in "$folder/world" operator "$@"; }
finish() {
    world in "$folder/world" operator clusterctl down --name "$name" --yes >/dev/null 2>&1 || true
    world stop "$folder/world" || true
    rm -rf "$folder"
}
trap finish EXIT

echo "SIMULATED: an EC2 API on this machine, with a real host (sshd, addresses, firewall, metadata service)"
echo "behind each instance and a made-up Sapphire Rapids CPU in each. Nothing is Amazon's, or costs anything."
stacks=$(python -c 'from tests.command import built_stack; print(built_stack().parent)' | tail -1)
world start "$folder/world" --stacks "$stacks" --simulate-cpu sapphire-rapids
cat > "$folder/ec2.yml" <<END
all:
  vars:
    clusterctl:
      name: $name
      provider: ec2
      nodes: 4
      require_amx: true
      ec2:
        region: us-east-1
        instance_type: m7i.16xlarge
        address_service: http://198.51.100.1:5002/
END
step clusterctl up -i "$folder/ec2.yml" --dry-run
step clusterctl up -i "$folder/ec2.yml"
step clusterctl status --name "$name"
step clusterctl check-amx --name "$name" || echo "(the flags are made up, the CPU behind them is this machine's)"
step clusterctl train run_qa --name "$name"
step clusterctl up --name "$name" --nodes 6
step clusterctl up --name "$name" --nodes 3 --yes
step clusterctl ls --all-regions
step clusterctl down --name "$name" --yes
printf '\n[%3d s] what is left in the account, by type of resource:\n' $((SECONDS - started))
world resources "$folder/world"
[ "$(world resources "$folder/world")" = "{}" ]
