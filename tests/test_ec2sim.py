"""The simulated EC2 that the EC2 provider is tested on: with boto3 and ssh from its operator's machine."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.ec2sim import World, WorldError
from tests.ec2sim.api.calls import fits
from tests.ec2sim.firewall import Guarded, Rule, ruleset
from tests.ec2sim.site import Site, connects, run, until
from tests.local_nodes import needs_nodes

pytestmark = [
    *needs_nodes,
    pytest.mark.skipif(shutil.which("nft", path="/usr/sbin:/usr/bin") is None, reason="needs nftables"),
]
POWER_OFF = ("python3", "-c", "import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """In place of conftest's, whose image has the stack installed."""
    with World.start(tmp_path_factory.mktemp("ec2"), boot_delay_s=0.1, terminate_delay_s=0.3) as world:
        yield world


@pytest.fixture
def site(world: World, tmp_path: Path) -> Iterator[Site]:
    """An account that must be as empty after the test as it was before."""
    assert world.resources() == {}
    site = Site(world, tmp_path)
    yield site
    world.clear_faults()
    site.clean_up()
    assert world.resources() == {}


def refused(call: Callable[[], Any]) -> str:
    """The code of the error."""
    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Code"])


def test_rules_name_members_of_a_group_and_drop_the_rest() -> None:
    hosts = [Guarded("h1", "172.31.0.4", "203.0.113.10", ("a",)), Guarded("h2", "172.31.0.5", "", ("a", "b"))]
    text = ruleset(
        hosts, {"a": [Rule("-1", None, None, group="a")], "b": [Rule("tcp", 80, 81, "10.0.0.0/8")]}, ["op0"]
    )
    assert "ip saddr { 172.31.0.4, 172.31.0.5 }  accept" in text
    assert text.count("ip saddr 10.0.0.0/8 tcp dport 80-81 accept") == 1
    assert "dnat to ip daddr map { 203.0.113.10 : 172.31.0.4 }" in text


@pytest.mark.parametrize(
    ("where", "fit"),
    [
        ({}, True),
        ({"SubnetId": "s"}, True),
        ({"SubnetId": "t"}, False),
        ({"SubnetId": "s", "Placement.GroupName": "g"}, True),
        ({"InstanceIds": "i-2"}, True),
        ({"NetworkInterfaces.Groups": "sg"}, True),
        ({"NetworkInterfaces.SubnetId": "s"}, False),
    ],
)
def test_fault_fits_requests_that_hold_all_it_names(where: dict[str, str], fit: bool) -> None:
    request = {
        "SubnetId": "s",
        "Placement": {"GroupName": "g"},
        "InstanceIds": ["i-1", "i-2"],
        "NetworkInterfaces": [{"Groups": ["sg"]}],
    }
    assert fits(where, request) is fit


def test_instances_answer_by_ssh_with_the_host_key_of_their_user_data(site: Site) -> None:
    first, second = site.up(2)
    assert [one["AmiLaunchIndex"] for one in (first, second)] == [0, 1]
    name = "ip-" + first["PrivateIpAddress"].replace(".", "-")
    assert site.ssh(first, "hostname; sudo -n id -u; getent hosts $(hostname)").stdout.split()[:3] == [
        name, "0", first["PrivateIpAddress"],
    ]  # fmt: skip
    found = site.ssh(
        second, "ls -A /opt/clusterctl/stacks; sudo touch /opt/clusterctl/stacks/x && echo writable"
    )
    assert found.stdout == "writable\n"


def test_security_groups_let_in_what_they_say_and_nothing_else(world: World, site: Site) -> None:
    first, second = site.up(2)
    public, private = first["PublicIpAddress"], first["PrivateIpAddress"]
    assert connects(world.operator, public, 22)
    assert not connects(world.stranger, public, 22)
    assert not connects(world.operator, public, 8000)

    def inside(*argv: str) -> tuple[str, ...]:
        return world.enter(second["InstanceId"], *argv)

    def python(_: str, *argv: str) -> tuple[str, ...]:
        return inside("/usr/bin/python3", *argv)

    assert connects(python, private, 8000)
    assert not connects(python, public, 8000)  # a group's members count by their private addresses
    site.let_in(IpProtocol="tcp", FromPort=8000, ToPort=8000, IpRanges=[{"CidrIp": "0.0.0.0/0"}])
    assert connects(world.stranger, public, 8000)


def test_operator_is_seen_by_its_own_address(world: World) -> None:
    fetch = (
        "/usr/bin/python3",
        "-c",
        "import urllib.request as u, sys; print(u.urlopen(sys.argv[1]).read().decode())",
    )
    assert run(*world.operator(*fetch, world.address_service)).strip() == "198.51.100.7"
    assert run(*world.stranger(*fetch, world.address_service)).strip() == "192.88.99.9"


def test_metadata_wants_a_token_where_the_instance_says_so(site: Site) -> None:
    options = {"HttpTokens": "required", "InstanceMetadataTags": "enabled"}
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}]
    (instance,) = site.up(MetadataOptions=options, TagSpecifications=tags)
    at, header = "http://169.254.169.254/latest", "X-aws-ec2-metadata-token"
    shell = f"""
    curl -s -o /dev/null -w '%{{http_code}}\\n' {at}/meta-data/instance-id
    token=$(curl -s -X PUT -H '{header}-ttl-seconds: 60' {at}/api/token)
    for what in instance-id tags/instance/a instance-life-cycle spot/instance-action; do
        curl -s -H "{header}: $token" {at}/meta-data/$what; echo
    done"""
    assert site.ssh(instance, shell).stdout.split("\n")[:5] == [
        "401", instance["InstanceId"], "b", "on-demand", "404 - Not Found",
    ]  # fmt: skip


def test_user_data_is_run_as_cloud_init_would(world: World, site: Site) -> None:
    more = """\
write_files:
- {path: /etc/plain, content: plain, permissions: '0600'}
- {path: /home/ubuntu/late, content: bGF0ZQ==, encoding: b64, owner: 'ubuntu:ubuntu', defer: true}
runcmd:
- [sh, -c, "echo $0 from runcmd", hello]
- setsid sleep 4321 > /dev/null 2>&1 &
"""
    (instance,) = site.up(more=more)
    assert site.ssh(instance, "cloud-init status --wait").stdout == "status: done\n"
    look = "stat -c '%a %U' /etc/plain /home/ubuntu/late; cat late; echo; pgrep -xa sleep | grep -c 4321"
    assert site.ssh(instance, look).stdout.split("\n")[:4] == ["600 root", "644 ubuntu", "late", "1"]
    console = site.console(instance["InstanceId"])
    assert "hello from runcmd" in console
    assert f"-----BEGIN SSH HOST KEY KEYS-----\n{site.host_key}" in console
    world.exec(instance["InstanceId"], "sh", "-c", "kill -HUP $(cat /run/sshd.pid)")
    until(lambda: site.ssh(instance, "true").returncode == 0, "sshd after its reload", 5)


def test_launch_is_idempotent_by_its_token(site: Site) -> None:
    once = site.run(2, ClientToken="token")
    assert site.run(2, ClientToken="token") == once
    site.instances = once
    assert refused(lambda: site.run(1, ClientToken="token")) == "IdempotentParameterMismatch"
    filters = [
        {"Name": "client-token", "Values": ["token"]},
        {"Name": "instance-state-name", "Values": ["pending"]},
    ]
    assert len(site.api("describe_instances", Filters=filters)["Reservations"][0]["Instances"]) == 2


def test_what_aws_refuses_is_refused(site: Site) -> None:
    assert refused(lambda: site.run(KeyName="none")) == "InvalidKeyPair.NotFound"
    assert refused(lambda: site.run(SecurityGroupIds=["sg-0123456789abcdef0"])) == "InvalidGroup.NotFound"
    assert refused(lambda: site.run(ImageId="ami-0123456789abcdef0")) == "InvalidAMIID.NotFound"
    assert refused(lambda: site.run(Placement={"GroupName": "none"})) == "InvalidPlacementGroup.Unknown"
    assert refused(lambda: site.run(DryRun=True)) == "DryRunOperation"
    assert site.world.resources().keys() == {"security groups", "key pairs"}


def test_groups_in_use_are_kept_until_their_instances_are_terminated(site: Site) -> None:
    tags = [{"ResourceType": "placement-group", "Tags": [{"Key": "k", "Value": "v"}]}]
    site.api("create_placement_group", GroupName="close", Strategy="cluster", TagSpecifications=tags)
    found = site.api("describe_placement_groups", Filters=[{"Name": "tag:k", "Values": ["v"]}])[
        "PlacementGroups"
    ]
    assert [(group["GroupName"], group["State"], group["Tags"]) for group in found] == [
        ("close", "available", [{"Key": "k", "Value": "v"}])
    ]
    (name,) = site.run(Placement={"GroupName": "close"})
    site.api("terminate_instances", InstanceIds=[name])
    assert site.describe(name)[0]["State"]["Name"] == "shutting-down"
    assert (
        refused(lambda: site.api("delete_placement_group", GroupName="close"))
        == "InvalidPlacementGroup.InUse"
    )
    assert refused(lambda: site.api("delete_security_group", GroupId=site.group)) == "DependencyViolation"
    site.wait("terminated", name)
    site.api("delete_placement_group", GroupName="close")


def test_image_of_an_instance_boots_with_its_disk_as_another_instance(site: Site) -> None:
    (first,) = site.up()
    site.ssh(
        first, "echo kept | sudo tee /etc/kept /opt/kept; sudo rm /etc/fstab; sudo rm -r /usr/share/doc/sudo"
    )
    tags = [{"ResourceType": kind, "Tags": [{"Key": "k", "Value": kind}]} for kind in ("image", "snapshot")]
    image = site.api("create_image", InstanceId=first["InstanceId"], Name="baked", TagSpecifications=tags)[
        "ImageId"
    ]
    assert refused(lambda: site.run(ImageId=image)) == "InvalidAMIID.Unavailable"

    def baked() -> Any:
        filters = [{"Name": "tag:k", "Values": ["image"]}]
        return site.api("describe_images", Owners=["self"], Filters=filters)["Images"][0]

    until(lambda: bool(baked()["State"] == "available"), "the image")
    (second,) = site.up(ImageId=image)
    found = site.ssh(
        second, "cat /etc/kept /opt/kept; ls /etc/fstab /usr/share/doc/sudo; hostname; cat /etc/hosts"
    )
    assert found.stdout.split()[:2] == ["kept", "kept"]
    assert found.stderr.count("No such file") == 2
    assert "ip-" + first["PrivateIpAddress"].replace(".", "-") not in found.stdout
    until(lambda: site.ssh(first, "true").returncode == 0, "the first one after its reboot")
    snapshot = baked()["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    assert site.world.resources()["snapshots"] == [snapshot]
    site.api("deregister_image", ImageId=image)
    site.api("delete_snapshot", SnapshotId=snapshot)


@pytest.mark.parametrize(("behavior", "state"), [("terminate", "terminated"), ("stop", "stopped")])
def test_instance_that_powers_itself_off_ends_as_it_was_told_to(
    site: Site, behavior: str, state: str
) -> None:
    (name,) = site.run(InstanceInitiatedShutdownBehavior=behavior)
    site.wait("running", name)
    site.world.exec(name, *POWER_OFF, expect=None)
    assert site.wait(state, name)[0]["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_stopped_instance_keeps_its_disk_and_gets_another_address(site: Site) -> None:
    (before,) = site.up()
    name = before["InstanceId"]
    site.ssh(before, "echo kept > kept")
    site.api("stop_instances", InstanceIds=[name])
    assert "PublicIpAddress" not in site.wait("stopped", name)[0]
    site.api("start_instances", InstanceIds=[name])
    (after,) = site.wait("running", name)
    assert after["PublicIpAddress"] != before["PublicIpAddress"]
    until(lambda: site.ssh(after, "cat kept").stdout == "kept\n", "ssh at the new address")


def test_faults_hit_the_requests_that_they_name(world: World, site: Site) -> None:
    subnets = [one["SubnetId"] for one in site.api("describe_subnets")["Subnets"][:2]]
    world.fault(
        "RunInstances", "InsufficientInstanceCapacity", status=500, times=9, where={"SubnetId": subnets[0]}
    )
    assert refused(lambda: site.run(SubnetId=subnets[0])) == "InsufficientInstanceCapacity"
    assert site.run(SubnetId=subnets[1])
    world.fault("*", "RequestLimitExceeded", status=503, after=1)
    world.reset_calls()
    site.api("describe_key_pairs")
    assert refused(lambda: site.api("describe_vpcs")) == "RequestLimitExceeded"
    site.api("describe_vpcs")
    assert world.calls() == {"DescribeKeyPairs": 1, "DescribeVpcs": 2}
    assert world.calls("us-west-2") == {}


def test_spot_instance_is_taken_after_its_notice(world: World, site: Site) -> None:
    tags = [{"ResourceType": "spot-instances-request", "Tags": [{"Key": "k", "Value": "v"}]}]
    (instance,) = site.up(InstanceMarketOptions={"MarketType": "spot"}, TagSpecifications=tags)
    name = instance["InstanceId"]
    assert instance["InstanceLifecycle"] == "spot"

    def request() -> Any:
        filters = [{"Name": "tag:k", "Values": ["v"]}]
        return site.api("describe_spot_instance_requests", Filters=filters)["SpotInstanceRequests"][0]

    assert (request()["State"], request()["InstanceId"]) == ("active", name)
    world.interrupt(name, 1.5)
    at, header = "http://169.254.169.254/latest", "X-aws-ec2-metadata-token"
    token = f"curl -s -X PUT -H '{header}-ttl-seconds: 60' {at}/api/token"
    look = f'curl -s -H "{header}: $({token})" {at}/meta-data/spot/instance-action'
    assert '"action": "terminate"' in site.ssh(instance, look).stdout
    assert site.wait("terminated", name)[0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    assert request()["State"] == "closed"


def test_boots_go_wrong_when_ordered(world: World, site: Site) -> None:
    for kind in ("wrong-host-key", "no-sshd", "dies", "slow"):
        world.next_boot(kind, seconds=2)
    impostor, silent, dead, slow = site.run(4)
    assert site.wait("terminated", dead)[0]["StateReason"]["Code"] == "Server.InternalError"
    until(lambda: "HOST KEY KEYS" in site.console(silent), "the first boot of the one without sshd")
    assert site.host_key not in site.console(impostor)
    until(
        lambda: "verification failed" in site.ssh(site.describe(impostor)[0], "true").stderr, "the impostor"
    )
    assert "refused" in site.ssh(site.describe(silent)[0], "true").stderr
    until(lambda: site.ssh(site.describe(slow)[0], "true").returncode == 0, "the slow one")
    with pytest.raises(WorldError, match="there are wrong-host-key, no-sshd"):
        world.next_boot("nonsense")


def test_two_regions_stand_side_by_side(world: World, site: Site, tmp_path: Path) -> None:
    (tmp_path / "west").mkdir()
    west = Site(world, tmp_path / "west", "us-west-2")
    try:
        (here,), (there,) = site.up(), west.up()
        assert here["PrivateIpAddress"].startswith("172.31.")
        assert there["Placement"]["AvailabilityZone"].startswith("us-west-2")
        assert site.ssh(here, "hostname").stdout != west.ssh(there, "hostname").stdout
        assert {one["RegionName"] for one in site.api("describe_regions")["Regions"]} == {
            "us-east-1",
            "us-west-2",
        }
    finally:
        west.clean_up()


def test_offers_and_prices_are_told_by_zone(site: Site) -> None:
    filters = [{"Name": "instance-type", "Values": ["m7i.16xlarge"]}]
    offers = site.api("describe_instance_type_offerings", LocationType="availability-zone", Filters=filters)
    prices = site.api("describe_spot_price_history", InstanceTypes=["m7i.16xlarge"])["SpotPriceHistory"]
    zones = {offer["Location"] for offer in offers["InstanceTypeOfferings"]}
    assert zones == {price["AvailabilityZone"] for price in prices}
    assert all(0.5 < float(price["SpotPrice"]) < 5 for price in prices)
    assert time.time() - prices[0]["Timestamp"].timestamp() < 60


def test_new_instances_are_not_known_at_once_where_that_is_asked_for(tmp_path: Path) -> None:
    with World.start(tmp_path / "world", eventual_s=1.0) as world:
        site = Site(world, tmp_path)
        (name,) = site.run(
            TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "k", "Value": "v"}]}]
        )
        filters = [{"Name": "tag:k", "Values": ["v"]}]
        assert refused(lambda: site.describe(name)) == "InvalidInstanceID.NotFound"
        assert refused(lambda: site.api("create_tags", Resources=[name], Tags=[{"Key": "a", "Value": "b"}]))
        assert site.api("describe_instances", Filters=filters)["Reservations"] == []
        time.sleep(1.0)
        assert site.describe(name)
        assert len(site.api("describe_instances", Filters=filters)["Reservations"]) == 1


def test_nothing_is_left_of_a_world_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    world = World.start(folder)
    first, _ = Site(world, tmp_path).up(2)
    inside = {run(*world.operator("readlink", "/proc/self/ns/net")).strip(), *map(spaces_of, world.pids())}
    inside.add(run(*world.enter(first["InstanceId"], "readlink", "/proc/self/ns/net")).strip())
    inside.discard(spaces_of(os.getpid()))
    assert len(inside) == 3  # the operator's, the router's and the host's
    assert not leftovers(folder, set())  # its mounts and links are never the machine's
    assert leftovers(folder, inside)
    os.kill(max(world.pids()), signal.SIGKILL)
    until(lambda: not world.pids(), "the world's end")
    until(lambda: not leftovers(folder, inside), "nothing left")
    with pytest.raises(WorldError, match="no simulated EC2 answers"):
        world.resources()


def leftovers(folder: Path, spaces: set[str]) -> list[str]:
    """Mounts, links and processes of a world, as this machine sees them."""
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line]
    links = [name for name in ("op0", "st0", "h1") if Path("/sys/class/net", name).exists()]
    processes = [entry.name for entry in Path("/proc").glob("[0-9]*") if spaces_of(int(entry.name)) in spaces]
    return mounts + links + processes


def spaces_of(pid: int) -> str:
    """The network namespace of a process; empty when it has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""
