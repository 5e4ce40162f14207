"""The inventory: what is wrong is named with file and line; the record comes back as it was."""

from pathlib import Path

import pytest
import yaml

from provision.errors import SettingsError
from provision.inventory import dump_record, load_record, read_inventory
from provision.model import Cluster, Machine, Node

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
    packages=("evaluate", "rouge-score==0.1.2"),
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


# Hosts of the user's own: machines that stand already.


def machines(tmp_path, text, name="lab.yml"):
    path = tmp_path / name
    path.write_text(text)
    return read_inventory(path).machines


def test_an_inventory_with_hosts_alone_is_one_of_machines(tmp_path):
    path = write(tmp_path, "all:\n  hosts:\n    n[01:03].lab:\n")

    got = read_inventory(path)

    assert (got.name, got.provider, got.nodes) == ("lab", "static", None)
    assert got.machines == tuple(Machine(f"n{number}.lab") for number in ("01", "02", "03"))


def test_a_file_whose_name_is_no_clusters_name_gives_the_default(tmp_path):
    path = tmp_path / "My_Lab.yml"
    path.write_text("all: {hosts: {n1: }}")

    assert read_inventory(path).name == "default"


def test_every_variable_that_leads_to_a_machine_is_read(tmp_path):
    (machine,) = machines(
        tmp_path,
        """
        all:
          hosts:
            n1:
              ansible_host: 10.0.0.1
              ansible_port: "2222"
              ansible_user: ann
              ansible_ssh_private_key_file: ~/.ssh/lab
              ansible_ssh_common_args: -J bob@gate:2200 -o ControlMaster=auto
              ansible_become: yes
              ansible_become_method: sudo
              clusterctl_private_address: 192.168.0.1
              clusterctl_host_keys: [ssh-ed25519 AAAAC3Nza== a comment]
        """,
    )

    assert machine == Machine(
        name="n1",
        address="10.0.0.1",
        port=2222,
        user="ann",
        identity_file=Path.home() / ".ssh" / "lab",
        jump="bob@gate:2200",
        private_address="192.168.0.1",
        host_keys=("ssh-ed25519 AAAAC3Nza==",),
    )


def test_a_machine_of_ones_own_variables_wins_over_its_ssh_arguments_and_older_names_count(tmp_path):
    (machine,) = machines(
        tmp_path,
        "all: {hosts: {n1: {ansible_port: 2222, ansible_ssh_common_args: -p 23 -l ann -i /k, "
        "ansible_user: eve, ansible_ssh_user: bob, ansible_ssh_args: -o ProxyJump=first -l carl, "
        "ansible_ssh_extra_args: -J second}}}",
    )

    assert (machine.port, machine.user, machine.jump) == (2222, "carl", "first")
    assert machine.identity_file == Path("/k")


def test_a_local_machine_is_told_from_one_by_ssh(tmp_path):
    text = "all: {hosts: {localhost: {ansible_connection: local}, n1: {ansible_connection: ssh}}}"

    assert [machine.local for machine in machines(tmp_path, text)] == [True, False]


def test_the_group_and_the_head_that_are_named_count(tmp_path):
    text = """
        all:
          vars: {clusterctl: {name: xeons, nodes: 2, static: {group: amx, head: n3}}}
          hosts: {n1: }
          children: {amx: {children: {old: {hosts: {n2: }}}, hosts: {n3: , n4: }}}
        """
    got = read_inventory(write(tmp_path, text))

    assert (got.name, got.nodes) == ("xeons", 2)
    assert [machine.name for machine in got.machines] == ["n3", "n2", "n4"]


def test_settings_in_group_vars_count_too(tmp_path):
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("\nclusterctl:\n  require_amx: true\n  noodes: 3\n")
    path = write(tmp_path, "all: {hosts: {n1: }}")
    with pytest.raises(
        SettingsError, match=r"group_vars/all.yml:4: unknown key 'noodes'; did you mean 'nodes'"
    ):
        read_inventory(path)


def test_variables_that_nobody_needs_may_be_templates_or_secrets(tmp_path):
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n61\n")
    text = """
        all:
          vars: {motd: "{{ x }}", ansible_become_password: "{{ vault_sudo }}"}
          hosts:
            n1: {ansible_host: !unsafe "{{.lab", ansible_ssh_pass: !vault "$ANSIBLE_VAULT;1.1;AES256"}
        """
    got = read_inventory(write(tmp_path, text))

    assert got.machines == (Machine("n1", address="{{.lab"),)
    assert "all.yml:1: encrypted with Ansible Vault" in got.notes[0]


def host(*variables):
    return "all:\n  hosts:\n    n1:\n" + "".join(f"      {variable}\n" for variable in variables)


def block(*settings):
    return "all:\n  hosts: {n1: , n2: }\n  vars:\n    clusterctl:\n" + "".join(
        f"      {each}\n" for each in settings
    )


UNUSABLE = {
    "a template": (host('ansible_host: "{{ ip }}"'), "lab.yml:4: n1: ansible_host is a template"),
    "a secret": (
        host("ansible_user: !vault x"),
        "lab.yml:4: n1: ansible_user is encrypted with Ansible Vault",
    ),
    "a template in the settings": (
        block("static:", '  head: "{{ first }}"'),
        "lab.yml:6: head is a template",
    ),
    "a secret in the settings": (block("name: !vault x"), "lab.yml:5: name is encrypted"),
    "a password": (
        host("x: 1", "ansible_become_password: hunter2"),
        "lab.yml:5: n1: ansible_become_password stands here in plain text; .*--ask-pass or --password",
    ),
    "a number for a password": (
        host("ansible_ssh_pass: 12345"),
        "lab.yml:4: n1: ansible_ssh_pass stands here",
    ),
    "no port": (host("ansible_port: ssh"), "lab.yml:4: n1: ansible_port: is to be a port, not 'ssh'"),
    "a port above all": (host("ansible_port: 70000"), "is to be a port"),
    "an address that is no text": (host("ansible_host: 10"), "n1: ansible_host: is to be a text, not 10"),
    "arguments of ssh": (
        host("ansible_ssh_common_args: -o StrictHostKeyChecking=no"),
        "lab.yml:4: n1: ansible_ssh_common_args: -o StrictHostKeyChecking=no: host keys are always checked",
    ),
    "a port in arguments": (host("ansible_ssh_extra_args: -p ssh"), "lab.yml:4: .* port ssh is not a number"),
    "another connection": (host("ansible_connection: winrm"), "lab.yml:4: n1: ansible_connection: winrm"),
    "another way up": (host("ansible_become_method: doas"), "ansible_become_method: 'doas' is no way"),
    "another account": (host("ansible_become_user: app"), "lab.yml:4: n1: ansible_become_user: 'app'"),
    "no host keys": (host("clusterctl_host_keys: SHA256:abc"), "lab.yml:4: .* a list of public keys"),
    "host keys by number": (host("clusterctl_host_keys: 3"), "a list of public keys"),
    "a typo of our own": (
        host("clusterctl_host_key: x"),
        "lab.yml:4: n1: unknown variable 'clusterctl_host_key'; did you mean 'clusterctl_host_keys'",
    ),
    "a name that no node can have": (
        "all:\n  hosts:\n    n_1:\n",
        "lab.yml:3: .*'n_1' cannot be a node's name",
    ),
    "one address for two": (
        "all:\n  hosts:\n    n1: {ansible_host: a}\n    n2: {ansible_host: a}\n",
        "lab.yml:4: n2 has the address of n1, a",
    ),
    "a group that is not there": (
        block("static:", "  group: al"),
        "lab.yml:6: no group 'al' in the inventory; did you mean 'all'",
    ),
    "a group without hosts": (
        "all: {hosts: {n1: }, children: {g: }, vars: {clusterctl: {static: {group: g}}}}",
        "lab.yml:1: the group 'g' has no hosts",
    ),
    "a head that is not there": (block("static:", "  head: n7"), "lab.yml:6: .*head 'n7' is not among"),
    "more nodes than machines": (block("nodes: 3"), "lab.yml:5: 3 nodes of 2 machines"),
    "a provider that makes its own": (
        block("provider: ec2"),
        "lab.yml:5: provider ec2 makes its own nodes, and this inventory has hosts",
    ),
    "a setting one level up": (
        block("group: g"),
        "lab.yml:5: 'group' belongs one level down, under `static:`",
    ),
    "machines in the settings": (block("static:", "  machines: []"), "lab.yml:6: unknown key 'machines'"),
    "settings of another group": (
        "all: {hosts: {n1: }}\ng:\n  vars:\n    clusterctl: {name: x}\n",
        "lab.yml:4: clusterctl's settings are one block, under all > vars > clusterctl",
    ),
    "settings of a host": (host("clusterctl: {name: x}"), "lab.yml:4: clusterctl's settings are one block"),
    "a provider without hosts": (
        "all: {vars: {clusterctl: {provider: static}}}",
        "lab.yml:1: the group 'all' has no hosts",
    ),
    "a provider that is a list": (block("provider: [a]"), r"lab.yml:5: no provider \['a'\]"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_cannot_be_honoured_is_named_with_file_and_line(tmp_path, case):
    text, message = UNUSABLE[case]
    with pytest.raises(SettingsError, match=message) as caught:
        read_inventory(write(tmp_path, text))
    assert "hunter2" not in str(caught.value)


def test_what_is_wrong_with_other_groups_is_not_looked_at(tmp_path):
    text = """
        all: {vars: {clusterctl: {static: {group: g}}}}
        g: {hosts: {n1: }}
        windows: {hosts: {w_1: {ansible_connection: winrm, ansible_password: x}}}
        """

    assert machines(tmp_path, text) == (Machine("n1"),)


def test_become_that_is_off_may_name_any_method(tmp_path):
    text = "all: {hosts: {n1: {ansible_become: 'no', ansible_become_method: doas, ansible_become_user: app}}}"

    assert machines(tmp_path, text) == (Machine("n1"),)
