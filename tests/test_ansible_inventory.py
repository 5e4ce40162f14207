"""Inventories are read as Ansible reads them: held against the real `ansible-inventory --list`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.ansible.patterns import parse_pattern
from provision.ansible.reading import read_ansible
from provision.ansible.ssh_args import parse_ssh_args
from provision.errors import SettingsError

ANSIBLE_INVENTORY = Path(sys.executable).with_name("ansible-inventory")
needs_ansible = pytest.mark.skipif(
    not ANSIBLE_INVENTORY.exists(), reason="ansible-core is not installed (pip install -e '.[dev]')"
)


def run_ansible(path: Path) -> subprocess.CompletedProcess[str]:
    """From an empty folder: ansible-inventory reads group_vars/ where it is started, too."""
    empty = path.parent / ".elsewhere"
    empty.mkdir(exist_ok=True)
    (empty / "ansible.cfg").touch()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
        "HOME": str(empty), "ANSIBLE_CONFIG": str(empty / "ansible.cfg"),
    }  # fmt: skip
    command = (str(ANSIBLE_INVENTORY), "-i", str(path), "--list")
    return subprocess.run(command, capture_output=True, text=True, cwd=empty, env=environment, check=False)


def write(folder: Path, files: dict[str, str]) -> Path:
    """The files in a folder; returns the first."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / next(iter(files))


def assert_as_ansible(path: Path) -> dict[str, Any]:
    done = run_ansible(path)
    assert "Unable to parse" not in done.stderr, done.stderr
    theirs = json.loads(done.stdout)
    ours = json.loads(json.dumps(read_ansible(path).listing()))
    if "profile" not in theirs["_meta"]:  # new in ansible-core 2.19
        del ours["_meta"]["profile"]
    assert ours == theirs
    return ours


PARTS = {
    "hosts of all": {"hosts.yml": "all: {hosts: {n1: , n2: {x: 1}}}"},
    "a file without an extension": {"hosts": "all: {hosts: {n1: {x: 1}}}"},
    "JSON": {"hosts.json": '{"all": {"hosts": {"n1": {"x": 1}}}}'},
    "no hosts": {"hosts.yml": "all: {vars: {x: 1}}"},
    "groups without all": {"hosts.yml": "web: {hosts: {a: }}\ndb: {hosts: {b: }, vars: {x: 1}}"},
    "an empty group": {"hosts.yml": "all: {hosts: {a: }, children: {empty: , bare: {hosts: }}}"},
    "a group of empty groups": {"hosts.yml": "all: {children: {top: {children: {x: , y: }}}}"},
    "one host as a text": {"hosts.yml": "all:\n  hosts: a\n  children:\n    g:\n      hosts: b\n"},
    "one child as a text": {"hosts.yml": "all:\n  children: g\ng:\n  hosts: b\n"},
    "nested groups": {
        "hosts.yml": """
            all:
              vars: {from: all, all: 1}
              children:
                a:
                  vars: {from: a, a: 1}
                  children:
                    b:
                      vars: {from: b, b: 1}
                      children:
                        c: {vars: {from: c, c: 1}, hosts: {n1: {from: host}, n2: }}
                      hosts: {n3: }
            """
    },
    "a host in several groups": {
        "hosts.yml": """
            z: {hosts: {n1: {x: 1}, n2: }, vars: {from: z}}
            a: {hosts: {n1: {y: 2}, n3: }, vars: {from: a}}
            all: {hosts: {n1: {x: 3}, n4: }}
            """
    },
    "groups of the same depth by the alphabet": {
        "hosts.yml": "b: {hosts: {n: }, vars: {x: b}}\na: {hosts: {n: }, vars: {x: a}}\n"
        "B: {hosts: {n: }, vars: {x: B}}"
    },
    "the deeper group": {
        "hosts.yml": "z: {hosts: {n: }, vars: {x: z}}\ntop: {children: {a: {hosts: {n: }, vars: {x: a}}}}"
    },
    "priorities": {
        "hosts.yml": """
            a: {hosts: {n: }, vars: {x: a, ansible_group_priority: 10}}
            b: {hosts: {n: }, vars: {x: b, ansible_group_priority: "3"}}
            c: {hosts: {n: {ansible_group_priority: 5}}, vars: {x: c}}
            """
    },
    "a priority does not beat depth": {
        "hosts.yml": "a: {hosts: {n: }, vars: {x: a, ansible_group_priority: 99}}\n"
        "t: {children: {b: {hosts: {n: }, vars: {x: b}}}}"
    },
    "a priority in group_vars is a variable": {
        "hosts.yml": "a: {hosts: {n: }}\nb: {hosts: {n: }}",
        "group_vars/a.yml": "ansible_group_priority: 10\nx: a\n",
        "group_vars/b.yml": "x: b\n",
    },
    "a group with two parents": {
        "hosts.yml": """
            all:
              children:
                left: {vars: {x: left, l: 1}, children: {both: {hosts: {n: }}}}
                right: {vars: {x: right, r: 1}, children: {deeper: {children: {both: }}}}
            """
    },
    "a group told twice": {
        "hosts.yml": "g: {hosts: {a: }, vars: {x: 1}}\nall: {children: {g: {hosts: {b: }, vars: {y: 2}}}}"
    },
    "a child that is a host": {"hosts.yml": "all: {hosts: {a: }, children: {g: {children: {a: text}}}}"},
    "a group named as a host": {"hosts.yml": "all: {children: {a: {hosts: {a: {x: 1}, b: }}}}"},
    "ungrouped written out": {"hosts.yml": "ungrouped: {hosts: {a: , b: }}\ng: {hosts: {b: }}"},
    "a child of ungrouped": {"hosts.yml": "ungrouped: {children: {g: {hosts: {a: }}}, hosts: {b: }}"},
    "keys that mean nothing": {
        "hosts.yml": "all: {hosts: {a: }, host: {b: }, note: text, children: {g: }}\ntext: some\n"
    },
    "ranges": {
        "hosts.yml": """
            all:
              hosts:
                n[01:03]: {x: 1}
                n[8:11].lab:
                r[a:c]-[1:2]: {y: 2}
                s[1:10:4]:
                m[A:C]:
                o[:2]:
                e[5:3]:
            """
    },
    "ports": {
        "hosts.yml": """
            all:
              hosts:
                a:2222:
                b[1:2]:2200: {ansible_port: 22}
                "[fe80::1]:2022":
                "fe80::[a:c]":
                10.0.0.1:22:
                10.0.0.[5:6]:2222:
                under_score:22:
                "two words:22":
                "x:y:22":
                a:99: {x: 1}
            """
    },
    "a range in two groups": {
        "hosts.yml": "a: {hosts: {'n[1:4]': {x: 1}}}\nb: {hosts: {'n[3:6]': {x: 2}}, vars: {y: 3}}"
    },
    "anchors and merges": {
        "hosts.yml": "all:\n  vars: &common {x: 1, y: [1, {z: 2}]}\n  hosts:\n    n1: {<<: *common, x: 2}\n"
    },
    "values of every kind": {
        "hosts.yml": """
            all:
              vars:
                day: 2026-01-02
                time: 2026-01-02 03:04:05
                number: 0x10
                float: 1.5
                word: yes
                empty:
                keys: {1: a, null: b, 2.5: c, true_: d}
                text: |
                  two
                  lines
              hosts: {n1: }
            """
    },
    "templates, unsafe and encrypted values": {
        "hosts.yml": """
            all:
              vars:
                t: "{{ other }}"
                u: !unsafe "{{ raw }}"
                l: !unsafe [a, {b: c}, 3]
                v: !vault |
                  $ANSIBLE_VAULT;1.1;AES256
                  61626364
              hosts: {n1: {ansible_host: "{{ inventory_hostname }}.lab"}}
            """
    },
    "names that Ansible keeps for itself": {
        "hosts.yml": "all: {hosts: {n1: {inventory_dir: x, groups: y, environment: z, ansible_forks: 3}}}"
    },
    "localhost": {"hosts.yml": "all: {hosts: {localhost: {ansible_connection: local}, n1: }}"},
    "group_vars and host_vars": {
        "hosts.yml": """
            all:
              vars: {a: inventory all, b: inventory all, c: inventory all, d: inventory all}
              children:
                g:
                  hosts: {n1: {e: inventory host, f: inventory host}, n2: }
                  vars: {a: inventory g, b: inventory g}
            """,
        "group_vars/all.yml": "b: files all\nc: files all\nf: files all\n",
        "group_vars/g": "c: files g\nf: files g\n",
        "group_vars/none.yml": "x: of no group\n",
        "host_vars/n1.yaml": "f: files host\nd: {x: 1}\n",
        "host_vars/n2.json": '{"j": [1, 2]}',
    },
    "folders of variables": {
        "hosts.yml": "g: {hosts: {n1: }}",
        "group_vars/g/10-first.yml": "x: 1\ny: 1\n",
        "group_vars/g/20-second": "y: 2\n",
        "group_vars/g/deeper/z.yml": "z: 3\n",
        "group_vars/g/folder.d/no.yml": "no: 1\n",
        "group_vars/g/.hidden.yml": "hidden: 1\n",
        "group_vars/g/backup.yml~": "backup: 1\n",
        "group_vars/g/notes.txt": "no: 1\n",
        "group_vars/g/empty.yml": "# nothing\n",
        "group_vars/g.yml": "beside: the folder\n",
        "host_vars/n1/main.yml": "h: 1\n",
        "host_vars/n1.yml": "beside: the folder\n",
    },
    "the first extension counts": {
        "hosts.yml": "all: {hosts: {n1: }}",
        "host_vars/n1.yml": "x: yml\n",
        "host_vars/n1.yaml": "x: yaml\n",
        "host_vars/n1.json": '{"x": "json"}',
    },
    "group_vars of ungrouped": {
        "hosts.yml": "all: {hosts: {n1: }}\ng: {hosts: {n2: }}",
        "group_vars/ungrouped.yml": "x: 1\n",
    },
    "variables for hosts of a range": {
        "hosts.yml": "all: {hosts: {'n[1:3]': {x: 1}}}",
        "host_vars/n2.yml": "x: 2\n",
    },
}  # fmt: skip


@needs_ansible
@pytest.mark.parametrize("case", PARTS)
def test_the_listing_is_that_of_ansible(tmp_path, case):
    assert_as_ansible(write(tmp_path, PARTS[case]))


REFUSED_BY_BOTH = {
    "a list of hosts": ("all:\n  hosts:\n    - n1\n", "hosts.yml:2: 'hosts' is to be a mapping; write"),
    "a number as a host": ("all:\n  hosts:\n    7:\n", "hosts.yml:3: a host's name is a text; put 7"),
    "a number as a group": ("1: {hosts: {a: }}\n", r"hosts.yml:1: a group's name is a text"),
    "variables that are no mapping": ("all:\n  hosts:\n    n1: text\n", "hosts.yml:3: the variables of 'n1'"),
    "a circle": ("a: {children: {b: }}\nb: {children: {a: }}\n", r"hosts.yml:2: 'a' would be below itself"),
    "a group in itself": ("a: {children: {a: }}\n", "hosts.yml:1: 'a' would be below itself"),
    "all below a group": ("a: {children: {all: }}\n", "would be below itself"),
    "a range without an end": ("all:\n  hosts:\n    n[1:]:\n", r"hosts.yml:3: \[1:\] is not \[first:last\]"),
    "a range of two widths": ("all: {hosts: {'n[01:100]': }}\n", "are not of the same width"),
    "letters backwards": ("all: {hosts: {'n[c:a]': }}\n", "ends before it begins"),
    "letters and numbers": ("all: {hosts: {'n[a:3]': }}\n", "neither of numbers nor of letters"),
    "an open bracket": ("all: {hosts: {'n[1:3': }}\n", "a bracket of no range"),
    "a child that is nothing": ("a:\n  children:\n    b: text\n", "hosts.yml:3: the group 'b' is to be"),
    "a priority that is no number": ("a: {vars: {ansible_group_priority: high}}\n", "is to be a number"),
    "a list": ("- n1\n", r"hosts\.yml: an inventory is a mapping"),
    "a date that is none": ("all: {vars: {x: 2026-02-30}}\n", "not YAML: day"),
}  # fmt: skip


@needs_ansible
@pytest.mark.parametrize("case", REFUSED_BY_BOTH)
def test_what_ansible_cannot_read_is_named_with_its_line(tmp_path, case):
    text, message = REFUSED_BY_BOTH[case]
    path = write(tmp_path, {"hosts.yml": text})
    done = run_ansible(path)
    assert "Unable to parse" in done.stderr or "recursive dependency loop" in done.stderr
    with pytest.raises(SettingsError, match=message):
        read_ansible(path)


def test_file_and_line_of_every_value_are_known(tmp_path):
    path = write(
        tmp_path,
        {
            "hosts.yml": "all:\n  hosts:\n    n1:\n      x: 1\n  vars:\n    y: 2\n",
            "host_vars/n1.yml": "\nz: 3\n",
        },
    )
    (host,) = read_ansible(path).hosts

    assert host.at == f"{path}:3"
    assert {name: each.at for name, each in host.vars.items()} == {
        "x": f"{path}:4", "y": f"{path}:6", "z": f"{tmp_path}/host_vars/n1.yml:2"
    }  # fmt: skip


def test_hosts_come_in_the_order_of_the_file(tmp_path):
    text = "z: {hosts: {n9: , n1: }}\nall: {hosts: {n5: , n1: }, children: {a: {hosts: {n0: }}}}\n"
    inventory = read_ansible(write(tmp_path, {"hosts.yml": text}))

    assert [host.name for host in inventory.hosts] == ["n9", "n1", "n5", "n0"]
    assert [host.name for host in inventory.hosts_of("z")] == ["n9", "n1"]
    assert len(inventory.hosts_of("all")) == 4


def test_what_is_left_aside_is_noted_with_its_line(tmp_path):
    files = {
        "hosts.yml": "all:\n  host:\n    n1:\n  hosts: {n2: }\ntext: none\n",
        "group_vars/all/vault.yml": "$ANSIBLE_VAULT;1.1;AES256\n6162\n",
    }
    notes = read_ansible(write(tmp_path, files)).notes

    assert any(note.endswith("hosts.yml:2: 'host' is left aside; did you mean 'hosts'?") for note in notes)
    assert any("hosts.yml:5: 'text' is left aside" in note for note in notes)
    assert any("vault.yml:1: encrypted with Ansible Vault" in note for note in notes)


OTHER_KINDS = {
    "sections": ("hosts", "# mine\n[web]\nn1 ansible_host=10.0.0.1\n", "an INI inventory"),
    "hosts with variables": ("hosts", "n1 ansible_host=10.0.0.1\nn2\n", "an INI inventory"),
    "names alone": ("hosts", "n1\nn2\n", "an INI inventory"),
    "by its name": ("hosts.ini", "n1:22\n", "an INI inventory"),
    "a plugin's settings": ("aws_ec2.yml", "plugin: aws_ec2\n", "the settings of an inventory plugin"),
    "TOML": ("hosts.toml", "[all.hosts]\n", "a TOML inventory"),
    "encrypted": ("hosts.yml", "$ANSIBLE_VAULT;1.1;AES256\n61\n", "an encrypted inventory"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_KINDS)
def test_other_kinds_of_inventory_say_how_to_convert_them(tmp_path, case):
    name, text, kind = OTHER_KINDS[case]
    path = write(tmp_path, {name: text})
    with pytest.raises(SettingsError) as caught:
        read_ansible(path)
    assert f"{path}: {kind}" in str(caught.value)
    assert f"`ansible-inventory -i {path} --list -y --output NEW.yml`" in str(caught.value)


def test_an_inventory_script_says_how_to_convert_it(tmp_path):
    path = write(tmp_path, {"hosts": "#!/bin/sh\necho {}\n"})
    path.chmod(0o755)
    with pytest.raises(SettingsError, match="an inventory script"):
        read_ansible(path)


@needs_ansible
def test_the_conversion_that_is_named_works(tmp_path):
    ini = write(tmp_path, {"hosts.ini": "[web]\nn[01:02] ansible_host=10.0.0.1\n[web:vars]\nx=1\n"})
    new = tmp_path / "new.yml"
    command = (str(ANSIBLE_INVENTORY), "-i", str(ini), "--list", "-y", "--output", str(new))
    subprocess.run(command, check=True, capture_output=True)

    hosts = read_ansible(new).hosts_of("web")

    assert [(host.name, host.vars["x"].value) for host in hosts] == [("n01", 1), ("n02", 1)]


# Patterns: ranges and ports in any number, beside plain text.


@st.composite
def ranges(draw: st.DrawFn) -> str:
    step = draw(st.sampled_from(("", ":1", ":2", ":3")))
    if draw(st.booleans()):
        first, last = sorted(
            draw(st.lists(st.sampled_from("abcdXYZ"), min_size=2, max_size=2)), key=str.swapcase
        )
        return f"[{first}:{last}{step}]"
    first, last = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    width = draw(st.integers(1, 4))
    if width > 1:
        return f"[{first:0{width}}:{last:0{width}}{step}]" if first < 10 else f"[{first}:{last}{step}]"
    return f"[{first}:{last}{step}]"


patterns = st.builds(
    lambda name, parts, port: name + "".join(parts) + port,
    st.sampled_from(("n", "rack-", "a.b", "x_", "10.0.", "Ü")),
    st.lists(ranges() | st.sampled_from(("-", ".lab", "m", "_z")), max_size=3),
    st.sampled_from(("", "", ":22", ":2222")),
)


@needs_ansible
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(patterns, min_size=10, max_size=40, unique=True))
def test_any_pattern_expands_as_ansible_expands_it(tmp_path, drawn):
    assert_as_ansible(
        write(tmp_path, {"hosts.yml": yaml.safe_dump({"all": {"hosts": dict.fromkeys(drawn)}})})
    )


@given(st.integers(0, 500), st.integers(0, 60), st.integers(1, 7), st.integers(3, 5))
def test_a_range_has_both_its_ends_and_keeps_its_width(first, length, step, width):
    names, port = parse_pattern(f"n[{first:0{width}}:{first + length:0{width}}:{step}].lab:22")

    assert port == 22
    assert [int(name[1:-4]) for name in names] == list(range(first, first + length + 1, step))
    assert first >= 10 ** (width - 1) or {len(name) for name in names} == {len("n.lab") + width}


@given(st.text(max_size=12))
def test_any_text_is_a_pattern_or_refused_with_a_reason(text):
    if "[" not in text:
        assert len(parse_pattern(text)[0]) == 1
        return
    with contextlib.suppress(ValueError):
        assert all("[" not in name for name in parse_pattern(text)[0])


# Whole inventories: groups above and below each other, with priorities and variables.


@st.composite
def inventories(draw: st.DrawFn) -> dict[str, Any]:
    """Groups in which a later one is never above an earlier one, so that there is no circle."""
    names = draw(st.permutations(["a", "b", "c", "d", "e", "all", "ungrouped"]))
    order = ["all", *(name for name in names if name != "all")]
    groups: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(order), min_size=1, max_size=6, unique=True)):
        below = order[order.index(name) + 1 :]
        if name != "all":  # ansible-inventory leaves out variables of hosts in `ungrouped` and another group
            below = [other for other in below if other != "ungrouped" and name != "ungrouped"]
        hosts = draw(st.lists(st.sampled_from(("h1", "h2", "h3", "h[1:4]")), max_size=3, unique=True))
        values = {key: f"{key} of {name}" for key in draw(st.sets(st.sampled_from("xyz")))}
        if draw(st.booleans()) and name != "all":
            values["ansible_group_priority"] = draw(st.integers(0, 3))
        children = draw(st.lists(st.sampled_from(below), max_size=3, unique=True)) if below else []
        sections = {
            "hosts": {host: {"x": f"x of {host}"} if draw(st.booleans()) else None for host in hosts},
            "vars": values,
            "children": dict.fromkeys(children),
        }
        groups[name] = {key: sections[key] for key in draw(st.permutations(list(sections)))}
    return groups


@needs_ansible
@pytest.mark.slow
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(inventories())
def test_any_tree_of_groups_is_that_of_ansible(tmp_path, groups):
    assert_as_ansible(write(tmp_path, {"hosts.yml": yaml.safe_dump(groups, sort_keys=False)}))


# ssh's arguments.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", {}),
        ("-J gate", {"jump": "gate"}),
        ("-Jann@gate:2222,inner", {"jump": "ann@gate:2222,inner"}),
        ("-o ProxyJump=gate -J other", {"jump": "gate"}),
        ("-o 'ProxyJump gate' -C -q", {"jump": "gate"}),
        ("-oProxyJump=none", {}),
        ('-o ProxyCommand="ssh -W %h:%p -q ann@gate"', {"jump": "ann@gate"}),
        ("-o ProxyCommand='ssh -q -p 2222 -l ann gate -W [%h]:%p'", {"jump": "ann@gate:2222"}),
        (
            "-o Port=2222 -o User=ann -i ~/.ssh/lab",
            {"port": "2222", "user": "ann", "identity_file": "~/.ssh/lab"},
        ),
        ("-o ControlMaster=auto -o ControlPersist=60s -o StrictHostKeyChecking=accept-new", {}),
    ],
)
def test_ssh_arguments_that_clusterctl_does_too(text, said):
    assert parse_ssh_args(text) == said


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("-o StrictHostKeyChecking=no", "-o StrictHostKeyChecking=no: host keys are always checked"),
        ("-o UserKnownHostsFile=/dev/null", "UserKnownHostsFile=/dev/null"),
        ("-o ProxyCommand='nc -x proxy:1080 %h %p'", "ProxyCommand=nc -x proxy:1080 %h %p .* say -J"),
        ("-o ProxyCommand='ssh -i key -W %h:%p gate'", "say -J"),
        ("-L 80:a:80", "-L 80:a:80 is nothing"),
        ("-F other_config", "-F other_config"),
        ("-o Ciphers=aes128-ctr", "-o Ciphers=aes128-ctr"),
        ("-J 'two words'", "jump host 'two words' is not user@host:port"),
        ("stray", "'stray' is nothing"),
        ("-o 'unclosed", "quotation"),
    ],
)
def test_ssh_arguments_that_cannot_be_honoured_are_named(text, named):
    with pytest.raises(ValueError, match=named):
        parse_ssh_args(text)
