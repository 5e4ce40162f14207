"""What is decided before EC2 is asked: tags, places, parameters, permissions, and errors in words."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import SettingsError
from provision.providers.ec2 import tags
from provision.providers.ec2.account import explain, explain_botocore
from provision.providers.ec2.contact import host_keys_on
from provision.providers.ec2.images import Image
from provision.providers.ec2.launch import Order, Place, places, run_parameters
from provision.providers.ec2.launches import Launches
from provision.providers.ec2.network import Subnet, _plain, wanted_permissions
from provision.providers.ec2.settings import Ec2Settings
from provision.providers.ec2.standing import Standing, instances_of
from provision.providers.ec2.user_data import LIMIT_BYTES, new_host_key, user_data

A, B = Subnet("subnet-a", "vpc-1", "us-east-1a"), Subnet("subnet-b", "vpc-1", "us-east-1b")
ZONES = {"m7i.large": frozenset({"us-east-1a", "us-east-1b"}), "c7i.large": frozenset({"us-east-1b"})}


def described(number: int, index: int = 0, state: str = "running", **more: Any) -> dict[str, Any]:
    """An instance as DescribeInstances tells it."""
    return {
        "InstanceId": f"i-{number}",
        "AmiLaunchIndex": index,
        "State": {"Name": state},
        "InstanceType": "m7i.large",
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "SubnetId": "subnet-a",
        "LaunchTime": datetime(2026, 1, 1, 0, number, tzinfo=timezone.utc),
        "Tags": [
            {"Key": tags.CLUSTER, "Value": "demo"},
            {"Key": tags.NODES, "Value": "node1..2,node5"},
        ],
        **more,
    }


def standing(*instances: dict[str, Any]) -> Standing:
    return Standing(instances_of([{"Instances": list(instances)}]))


@given(st.lists(st.sampled_from([f"node{n}" for n in range(1, 40)] + ["spare", "node01"]), unique=True))
def test_names_survive_their_tag(names: list[str]) -> None:
    assert tags.decode_names(tags.encode_names(names)) == tuple(names)


def test_a_thousand_nodes_in_a_row_fit_one_tag() -> None:
    assert tags.in_launches([f"node{n}" for n in range(1, 1001)]) == [
        tuple(f"node{n}" for n in range(1, 1001))
    ]


def test_names_with_gaps_are_launched_in_several_calls() -> None:
    groups = tags.in_launches([f"node{n}" for n in range(1, 200, 2)])
    assert len(groups) > 1
    assert all(len(tags.encode_names(group)) <= tags.VALUE_LIMIT for group in groups)
    assert sum(groups, ()) == tuple(f"node{n}" for n in range(1, 200, 2))


def test_an_instance_is_named_by_its_launch_index() -> None:
    found = standing(described(1, 0), described(2, 1), described(3, 2))
    assert list(found.by_node) == ["node1", "node2", "node5"]


def test_an_instance_beyond_its_launch_names_is_called_by_its_id() -> None:
    assert list(standing(described(1, 7)).by_node) == ["i-1"]


def test_of_two_instances_of_a_node_the_older_stays() -> None:
    found = standing(described(2), described(1))
    assert found.by_node["node1"].id == "i-1"
    assert [each.id for each in found.surplus] == ["i-2"]


def test_an_instance_that_ends_is_no_node_any_more() -> None:
    found = standing(described(1, state="shutting-down"), described(2))
    assert found.by_node["node1"].id == "i-2"
    assert found.surplus == ()


def test_places_are_types_as_preferred_then_zones_that_have_them() -> None:
    settings = Ec2Settings(instance_type=("c7i.large", "m7i.large"))
    tries = [(place.type, place.subnet.zone) for place in places(settings, (A, B), ZONES, ())]
    assert tries == [("c7i.large", "us-east-1b"), ("m7i.large", "us-east-1a"), ("m7i.large", "us-east-1b")]


def test_more_nodes_go_where_the_cluster_stands() -> None:
    there = standing(described(1)).live
    tries = places(Ec2Settings(instance_type="m7i.large"), (A, B), ZONES, there)
    assert [(place.type, place.subnet) for place in tries] == [("m7i.large", A)]


def order(**settings: Any) -> Order:
    image = Image("ami-1", "ubuntu", "/dev/sda1", size_gib=8)
    labels = {tags.CLUSTER: "demo"}
    return Order(
        "demo", image, "clusterctl-demo", "sg-1", "clusterctl-demo", 0.0, labels, Ec2Settings(**settings)
    )


def test_parameters_of_a_launch() -> None:
    """The whole of it: this is what is billed."""
    made = run_parameters(order(), ("node1", "node2"), Place("m7i.large", A), "data")
    listed = [
        {"Key": tags.CLUSTER, "Value": "demo"},
        {"Key": tags.NODES, "Value": "node1..2"},
        {"Key": tags.ENDS_AT, "Value": "1970-01-01T00:00:00Z"},
    ]
    assert made == {
        "ImageId": "ami-1",
        "InstanceType": "m7i.large",
        "MinCount": 2,
        "MaxCount": 2,
        "KeyName": "clusterctl-demo",
        "SecurityGroupIds": ["sg-1"],
        "SubnetId": "subnet-a",
        "UserData": "data",
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {
                    "VolumeType": "gp3",
                    "VolumeSize": 100,
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "Placement": {"GroupName": "clusterctl-demo"},
        "CpuOptions": {"CoreCount": 1, "ThreadsPerCore": 1},
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": listed} for kind in ("instance", "volume", "network-interface")
        ],
    }


def test_metal_takes_no_cpu_options() -> None:
    made = run_parameters(order(), ("node1",), Place("r7iz.metal-16xl", A), "data")
    assert "CpuOptions" not in made


def test_spot_ends_by_termination_and_its_request_is_tagged() -> None:
    made = run_parameters(order(spot=True), ("node1",), Place("m7i.large", A), "data")
    assert made["InstanceMarketOptions"]["SpotOptions"]["InstanceInterruptionBehavior"] == "terminate"
    assert "spot-instances-request" in [each["ResourceType"] for each in made["TagSpecifications"]]


def test_user_data_fits_and_is_cloud_config() -> None:
    import yaml

    key = new_host_key()
    text = user_data(key, 1234.5)
    assert len(text.encode()) < LIMIT_BYTES
    assert text.startswith("#cloud-config\n")
    config = yaml.safe_load(text)
    assert config["ssh_keys"]["ed25519_public"] == key.public
    assert config["write_files"][0]["content"] == "1234\n"


def test_permissions_as_described_are_as_wanted() -> None:
    """So that `up` again changes nothing."""
    told = [
        {
            "IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "UserIdGroupPairs": [], "Ipv6Ranges": [],
            "IpRanges": [{"CidrIp": "203.0.113.7/32", "Description": "me"}], "PrefixListIds": [],
        },
        {
            "IpProtocol": "-1", "IpRanges": [], "Ipv6Ranges": [], "PrefixListIds": [],
            "UserIdGroupPairs": [{"GroupId": "sg-1", "UserId": "123456789012"}],
        },
    ]  # fmt: skip
    assert [_plain(each) for each in told] == wanted_permissions("sg-1", ["203.0.113.7/32"])


def test_a_launch_is_on_disk_before_it_is_made_and_its_private_key_goes_with_the_answer(
    tmp_path: Path,
) -> None:
    launches = Launches(tmp_path)
    launch = launches.begin(("node1",), "ssh-ed25519 AAA", {"UserData": "PRIVATE"})
    file = tmp_path / "launches.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert Launches(tmp_path).known.launches[0].parameters["ClientToken"] == launch.token
    assert len(launch.token) <= 64
    launches.answered(launch, ("i-1",))
    assert "PRIVATE" not in file.read_text()
    assert Launches(tmp_path).known.first_key("i-1") == "ssh-ed25519 AAA"


def test_launches_forget_what_is_gone_but_not_what_has_not_answered(tmp_path: Path) -> None:
    launches = Launches(tmp_path)
    launches.answered(launches.begin(("node1",), "k", {}), ("i-1",))
    launches.learn("i-1", "own")
    launches.begin(("node2",), "k", {})
    launches.keep_only(frozenset())
    assert [each.nodes for each in launches.known.launches] == [("node2",)]
    assert launches.known.host_keys == {}


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("UnauthorizedOperation", "lack the permission for RunInstances"),
        ("ExpiredToken", "aws sso login"),
        ("AuthFailure", "does not accept the credentials"),
        ("VcpuLimitExceeded", "Service Quotas"),
        ("OptInRequired", "not enabled"),
        ("SomethingElse", "RunInstances: it went wrong (SomethingElse)"),
    ],
)
def test_errors_of_the_api_are_one_line_with_what_next(code: str, wanted: str) -> None:
    said = explain(code, "it went\n wrong.", "RunInstances", "us-east-1")
    assert wanted in said
    assert "\n" not in said


def test_no_credentials_says_how_to_get_some() -> None:
    import botocore.exceptions

    assert "aws configure" in explain_botocore(botocore.exceptions.NoCredentialsError())


def test_host_keys_of_a_console() -> None:
    text = (
        "boot\n-----BEGIN SSH HOST KEY KEYS-----\necdsa-sha2 X r@h\nssh-ed25519 AAA= r@h\n-----END SSH ...\n"
    )
    assert host_keys_on(text) == {"ssh-ed25519 AAA="}
    assert host_keys_on("ssh-ed25519 AAA= somewhere else") == frozenset()


@pytest.mark.parametrize(
    "wrong",
    [
        {"instance_type": "m6i.large"},
        {"ttl": "soon"},
        {"ssh_from": ("203.0.113.7/8",)},
        {"volume_gib": 1},
        {"tags": {"aws:x": "y"}},
        {"tags": {"n": 1}},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Ec2Settings(**wrong)


def test_the_policy_names_every_call() -> None:
    """docs/ec2-policy.json is what a lacking permission points to."""
    import re

    policy = json.loads((Path(__file__).parents[1] / "docs/ec2-policy.json").read_text())
    allowed = {
        action.partition(":")[2].lower()
        for statement in policy["Statement"]
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }
    sources = Path(__file__).parents[1].glob("provision/providers/ec2/*.py")
    code = "".join(path.read_text() for path in sources)
    used = set(re.findall(r'(?:ec2|pages)\(\s*"([a-z_]+)"', code)) | set(
        re.findall(r'call\(\s*"ssm", "([a-z_]+)"', code)
    )
    assert used
    assert {name.replace("_", "") for name in used} <= allowed
