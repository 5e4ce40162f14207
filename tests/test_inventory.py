"""The inventory: what is wrong is named with file and line; the record comes back as it was."""

from pathlib import Path

import pytest
import yaml

from provision.errors import SettingsError
from provision.inventory import dump_record, load_record, read_inventory
from provision.model import Cluster, Node

ROOT = Path(__file__).parents[1]


def write(tmp_path, text):
    path = tmp_path / "lab.yml"
    path.write_text(text)
    return path


def inventory(tmp_path, *lines):
    body = "".join(f"      {line}\n" for line in lines)
    return write(tmp_path, "all:\n  vars:\n    clusterctl:\n" + body)


def test_settings_are_read_with_the_providers_own(tmp_path):
    path = inventory(tmp_path, "name: demo", "nodes: 3", "require_amx: true", "local:", "  link_rate: 10gbit")

    got = read_inventory(path)

    assert (got.name, got.nodes, got.require_amx) == ("demo", 3, True)
    assert got.provider_settings.link_rate == "10gbit"


@pytest.mark.parametrize("name", [path.name for path in (ROOT / "inventory").glob("*.yml")])
def test_the_examples_are_valid(name):
    assert read_inventory(ROOT / "inventory" / name).provider


BAD = {
    "a typo": (("noodes: 3",), r"lab.yml:4: unknown key 'noodes'; did you mean 'nodes'\?"),
    "a typo below": (
        ("local:", "  link_rat: x"),
        r"lab.yml:5: unknown key 'link_rat'; did you mean 'link_rate'\?",
    ),
    "a wrong type": (("nodes: many",), "lab.yml:4: nodes is to be a number or nothing, not 'many'"),
    "an unknown provider": (("provider: aws",), "lab.yml:4: no provider 'aws'; there is local"),
    "a bad name": (("name: Demo_1",), "lab.yml:4: a cluster's name is"),
    "a bad value": (("local:", "  disk_mib: 1"), "lab.yml:4: local: disk_mib must be at least 64"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path, case):
    lines, message = BAD[case]
    with pytest.raises(SettingsError, match=message):
        read_inventory(inventory(tmp_path, *lines))


def test_no_yaml_is_named_with_its_line(tmp_path):
    with pytest.raises(SettingsError, match=r"lab.yml:3: not YAML"):
        read_inventory(write(tmp_path, "all:\n  vars: [unclosed\n"))


@pytest.mark.parametrize("text", ["", "- a\n- list\n", "all:\n", "\x00binary", "all:\n  vars: 3\n"])
def test_what_is_no_inventory_is_refused(tmp_path, text):
    with pytest.raises(SettingsError, match=r"lab\.yml"):
        read_inventory(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"nowhere\.yml: No such file"):
        read_inventory(tmp_path / "nowhere.yml")


CLUSTER = Cluster(
    name="demo",
    provider="local",
    nodes=(
        Node(
            "node1", "198.18.0.2", identity_file=Path("/k"), host_keys=("ssh-ed25519 AAAA",), core_share=0.5
        ),
        Node("node2", "198.18.0.3", port=2222, private_address="10.0.0.3"),
    ),
    shared_stack=True,
    settings={"link_rate": None},
)


def test_a_record_comes_back_as_it_was(tmp_path):
    assert load_record(write(tmp_path, dump_record(CLUSTER))) == CLUSTER


def test_a_record_is_an_inventory_that_ansible_reads():
    hosts = yaml.safe_load(dump_record(CLUSTER))["all"]["hosts"]

    assert hosts["node2"]["ansible_host"] == "198.18.0.3"
    assert hosts["node2"]["ansible_port"] == 2222


def test_a_broken_record_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="not a record"):
        load_record(write(tmp_path, "all: {vars: {}}\n"))
