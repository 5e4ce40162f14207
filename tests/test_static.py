"""Somebody's own machines: met as in a lab, used, and given back as they were."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from provision.inventory import load_record
from provision.openssh import KnownKeys, fingerprint, resolve
from provision.providers.static.host_keys import judge
from provision.providers.static.originals import Entry, Kind, Store, Touched, plan_return
from provision.steps.texts import write_text
from tests.bare_metal import (
    PASSWORD,
    LabCommand,
    at,
    bare_metal,
    differences,
    known,
    login,
    roots,
    share,
    with_one_home,
)
from tests.local_nodes import eventually, needs_nodes

KEY = "ssh-ed25519 " + "A" * 68
OTHER = "ssh-ed25519 " + "B" * 68
INTERFACE = "eth0"


# What is decided before a machine is asked.


def test_a_host_key_counts_by_inventory_then_record_then_known_hosts():
    known = KnownKeys((KEY,))

    assert judge(KEY, (), (KEY, OTHER), KnownKeys()).pins == (KEY, OTHER)
    assert judge(KEY, (KEY,), (), KnownKeys((OTHER,))).pins == (KEY,)
    assert judge(KEY, (), (), known).pins == (KEY,)
    assert judge(OTHER, (), (), KnownKeys()).pins == ()


@pytest.mark.parametrize(
    ("recorded", "stated", "known", "said"),
    [
        ((), (), KnownKeys((OTHER,)), "your known_hosts has"),
        ((OTHER,), (), KnownKeys((KEY,)), "this cluster's record has"),
        ((KEY,), (OTHER,), KnownKeys((KEY,)), "the inventory has"),
    ],
)
def test_a_changed_host_key_is_refused_loudly(recorded, stated, known, said):
    problem = judge(KEY, recorded, stated, known).problem

    assert problem.startswith("HOST KEY CHANGED")
    assert said in problem
    assert fingerprint(OTHER) in problem


def test_a_revoked_host_key_is_refused_whoever_vouches_for_it():
    assert "REVOKED" in judge(KEY, (KEY,), (KEY,), KnownKeys((KEY,), (KEY,))).problem


def test_the_operators_configuration_means_what_it_means_to_ssh(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "more").write_text("Host lab*\n  User ann\n")
    (tmp_path / ".ssh" / "config").write_text(
        "# >>> clusterctl demo >>> managed, do not edit\nInclude /nowhere\n# <<< clusterctl demo <<<\n"
        f"Include {tmp_path}/more\nHost lab1\n  HostName 10.0.0.7\n  Port 2200\n  ProxyJump gate\n"
        f"Host *\n  IdentityFile ~/.ssh/mine\n"
    )
    (tmp_path / ".ssh" / "mine").touch()

    found = resolve("lab1")

    assert (found.host, found.user, found.port, found.jump) == ("10.0.0.7", "ann", 2200, "gate")
    assert found.key_files == (tmp_path / ".ssh" / "mine",)
    assert resolve("bob@lab1:22").user == "bob"
    assert resolve("lab1", port=22).port == 22


def store(now: Entry, original: Entry, *users: str) -> Store:
    return Store({"/f": now}, {"/f": original}, frozenset(users))


def planned(kind: Kind, now: Entry, original: Entry, *users: str, lines: frozenset[str] = frozenset()):
    return plan_return(
        store(now, original, *users), [Touched("/f", kind)], "demo", {"/f": lines}, purge=False
    )


def blocked(text: str) -> Entry:
    block = "# >>> clusterctl demo >>> managed, do not edit\nx\n# <<< clusterctl demo <<<\n"
    return Entry("file", "600", "0:0", (text + block).encode())


ABSENT = Entry()


def test_a_block_goes_and_the_file_only_when_it_was_made_for_it():
    assert "rm -f" in planned(Kind.BLOCK, blocked(""), ABSENT).changes[0]
    assert "rm -f" not in planned(Kind.BLOCK, blocked(""), Entry("file", "600", "0:0")).changes[0]
    assert "rm -f" not in planned(Kind.BLOCK, blocked("own\n"), ABSENT).changes[0]


def test_a_block_stays_for_another_node_that_has_the_same_home():
    assert planned(Kind.BLOCK, blocked(""), ABSENT, "n02.demo").changes == ()
    assert planned(Kind.BLOCK, blocked(""), ABSENT, "n02.other").changes != ()


def test_a_whole_file_comes_back_unless_it_was_edited():
    ours, edited = Entry("file", "644", "0:0", b"a\n"), Entry("file", "644", "0:0", b"a\nmine\n")
    before = Entry("file", "640", "0:0", b"old")

    assert "chmod 640" in planned(Kind.WHOLE, ours, before, lines=frozenset("a")).changes[1]
    assert planned(Kind.WHOLE, ours, ABSENT, lines=frozenset("a")).changes == ("rm -f /f",)
    kept = planned(Kind.WHOLE, edited, before, lines=frozenset("a"))
    assert (kept.changes, kept.notes) == ((), ("/f was edited since and is left as it is",))
    assert planned(Kind.WHOLE, ours, before, "n01.other", lines=frozenset("a")).changes == ()


def test_two_machines_write_the_same_file_of_a_shared_home_at_once(tmp_path):
    scripts: list[str] = []
    host = SimpleNamespace(run=lambda script, **more: scripts.append(script))
    write_text(host, str(tmp_path / "file"), "", getpass.getuser(), "600")

    def started(machine: str) -> subprocess.Popen[bytes]:
        uname = tmp_path / machine / "uname"
        uname.parent.mkdir()
        uname.write_text(f"#!/bin/sh\necho {machine}\n")
        uname.chmod(0o755)
        environment = os.environ | {"PATH": f"{uname.parent}:{os.environ['PATH']}"}
        return subprocess.Popen(["sh", "-c", scripts[0]], stdin=subprocess.PIPE, env=environment)

    with started("m1") as first:
        assert eventually(lambda: bool(list(tmp_path.glob(".file*"))))
        with started("m2") as second:
            second.communicate(b"whole\n")
        first.communicate(b"whole\n")

    assert (first.returncode, second.returncode) == (0, 0)
    assert (tmp_path / "file").read_text() == "whole\n"
    assert not list(tmp_path.glob(".file*"))


# Real machines.


WHO = """
import os, pathlib, socket
rank = os.environ["RANK"]
print(rank, os.environ["LOCAL_RANK"], "on", socket.gethostname(), flush=True)
pathlib.Path(f"by-{rank}").touch()
"""


def failed(ended) -> dict[str, str]:
    """Machine -> the one line of its failure."""
    lines = [line for line in ended.out.splitlines() if line.startswith("failed: m")]
    found = {line.split(": ")[1]: line for line in lines}
    assert len(found) == len(lines), lines
    return found


def no_changes(ended) -> bool:
    return ended.code == 0 and "changed=0" in ended.out and "changed: [" not in ended.out


@pytest.mark.nodes
@needs_nodes[1]
@needs_nodes[2]
class TestOnMachines:
    def test_a_lab_is_met_used_and_given_back_as_it_was(self, lab, command):
        bare = bare_metal(lab, "m1", "m2", "m3")
        bare.add_user("m1", "lab", groups="sudo")
        bare.root(
            "m1",
            "cd /home/lab; mkdir .ssh; printf 'Host other\\n  Port 7' > .ssh/config; chmod 640 .ssh/config; "
            f"printf '{KEY} me' > .ssh/authorized_keys; printf 'my own hosts\\n' > hosts; chmod 604 hosts; "
            "chown -R lab: .; chmod 755 .ssh; printf '10.9.9.9 printer' >> /etc/hosts; "
            "echo '* - nproc 99' > /etc/security/limits.d/50-clusterctl.conf",
        )
        bare.add_user("m2", "ann")
        bare.root(
            "m2",
            "echo 'ann ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ann; "
            "echo 'Port 2222' > /etc/ssh/sshd_config.d/20-lab.conf",
        )
        bare.reload("m2")
        bare.authorize("m2", "ann", login(command))
        bare.authorize("m3", "root", login(command))
        operator = bare.address("m1").rpartition(".")[0] + ".1"
        bare.root(
            "m3",
            "nft 'add table inet lab; add chain inet lab in { type filter hook input priority 0; }; "
            f"add rule inet lab in ip saddr {operator} tcp dport 22 drop'",
        )
        (command.ssh / "config").write_text(
            f"Host gate m2\n  HostName {bare.address('m2')}\n  Port 2222\n  User ann\n"
            f"Host *\n  IdentityFile {login(command)}\n"
        )
        known(bare, command, "m1")
        known(bare, command, "m2", port=2222)
        for number, name in enumerate(("m1", "m2", "m3"), 1):
            bare.root(name, f"ip addr add 10.77.0.{number}/24 dev {INTERFACE}")
        stated = f"clusterctl_host_keys: [{bare.node('m3').host_keys[0]}]"
        path = command.inventory(
            m1=at(bare, "m1", "lab", "clusterctl_private_address: 10.77.0.1"),
            m2="clusterctl_private_address: 10.77.0.2",
            m3=at(
                bare, "m3", "root", f"clusterctl_private_address: 10.77.0.3, clusterctl_jump: gate, {stated}"
            ),
        )
        before = {name: bare.look(name) for name in ("m1", "m2", "m3")}

        first = command.with_password("up", "-i", path)

        assert first.code == 0, first.out + first.err
        assert "90-clusterctl-" in first.out
        assert (command.ssh / "known_hosts").read_text().count("\n") == 2  # never written
        assert no_changes(command("up"))  # without the inventory, without the password
        assert "--- m1\nlab\n--- m2\nann\n--- m3\nroot" in command.ok("exec", "--", "id -un")
        assert command.on("m1", "ssh m3 'hostname; echo $SSH_CONNECTION'").split()[::3] == ["m3", "10.77.0.3"]
        config = yaml.safe_load((command.state / "record.yml").read_text())
        assert config["all"]["hosts"]["m3"]["clusterctl_jump"] == "gate"
        assert command("status").code == 0
        for file in [each for each in command.home.rglob("*") if each.is_file()]:
            assert PASSWORD.encode() not in file.read_bytes(), file

        trained = command("train", "run_qa", "--", "--max_steps", "2", "--max_eval_samples", "8")
        assert trained.code == 0, trained.out + trained.err

        bare.root("m1", "echo '# mine' >> /etc/hosts; echo 'Host mine' >> /home/lab/.ssh/config")
        bare.root("m2", "echo 'keep this' >> /home/ann/.ssh/known_hosts")
        ended = command("down", "--yes")

        assert ended.code == 0, ended.out + ended.err
        assert not command.state.exists()
        changed = differences(before["m1"], bare.look("m1"))
        assert set(changed) == {"/etc/hosts", "/home/lab/.ssh/config"}
        assert changed["/etc/hosts"][1][3].endswith("10.9.9.9 printer# mine\n")  # no newline was there
        assert changed["/home/lab/.ssh/config"][1][3] == "Host other\n  Port 7Host mine\n"
        assert set(differences(before["m2"], bare.look("m2"))) == {"/home/ann/.ssh/known_hosts"}
        assert differences(before["m3"], bare.look("m3")) == {}

    def test_questions_are_asked_once_for_all(self, lab, command):
        bare = bare_metal(lab, "m1", "m2")
        for name in ("m1", "m2"):
            bare.add_user(name, "lab", groups="sudo")
        path = command.inventory(m1=at(bare, "m1", "lab"), m2=at(bare, "m2", "lab"))
        answers = (("Trust them all? [y/N]", "y"), ("Password: ", PASSWORD))

        ended = command.at_terminal(answers, "up", "-i", path)

        assert ended.code == 0, ended.out
        assert fingerprint(bare.node("m2").host_keys[0]) in ended.out
        assert ended.out.count("Password: ") == 1
        assert PASSWORD not in ended.out
        refused = command.at_terminal((("[y/N]", "n"),), "down")
        assert "Give back cluster" in refused.out
        assert refused.code == 2
        assert "2 nodes given back" in command.ok("down", "--yes")

    def test_a_sudo_password_of_its_own_is_asked_once_more_where_it_is_wrong(self, lab, command):
        bare = bare_metal(lab, "m1")
        bare.add_user("m1", "lab", groups="sudo")
        bare.authorize("m1", "lab", login(command))
        (command.ssh / "config").write_text(f"IdentityFile {login(command)}\n")
        known(bare, command, "m1")
        path = command.inventory(m1=at(bare, "m1", "lab"))
        before = bare.look("m1")

        mistyped = command.at_terminal(
            (("Sudo password of m1", "no"), ("Sudo password", PASSWORD)), "up", "-i", path
        )

        assert mistyped.code == 0, mistyped.out
        assert mistyped.out.count("Sudo password of m1 (lab@") == 2
        assert command("down", "--yes").code == 0
        assert differences(before, bare.look("m1")) == {}

    def test_passwords_come_from_a_password_store(self, lab, command):
        bare = bare_metal(lab, "m1")
        bare.add_user("m1", "lab", groups="sudo")
        known(bare, command, "m1")
        path = command.inventory(m1=at(bare, "m1", "lab"))
        before = bare.look("m1")
        (command.home / "store").write_text(f"{PASSWORD}\nof the lab\n")

        locked = command("up", "-i", path, "--password-command", "false")
        ended = command("up", "-i", path, "--password-command", "cat store")

        assert "--password-command: `false` ended with exit code 1" in locked.err
        assert ended.code == 0, ended.out + ended.err

        bare.root("m1", "rm /etc/sudoers.d/90-clusterctl-*")
        closed = command("down", "--yes")
        assert closed.code == 1
        assert "failed: m1: sudo asks for a password again" in closed.out
        assert command("up", "-i", path, "--sudo-password-command", "cat store").code == 0
        assert command("down", "--yes").code == 0
        assert differences(before, bare.look("m1")) == {}

    def test_the_operators_agent_opens_a_machine(self, lab, command, tmp_path, monkeypatch):
        bare = bare_metal(lab, "m1")
        bare.authorize("m1", "root", login(command))
        known(bare, command, "m1")
        path = command.inventory(m1=at(bare, "m1", "root"))
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        with subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=-3) as agent:
            try:
                assert eventually((tmp_path / "agent").exists)
                subprocess.run(["ssh-add", "-q", str(login(command))], check=True)
                login(command).unlink()

                assert command("up", "-i", path).code == 0
                monkeypatch.delenv("SSH_AUTH_SOCK")
                assert command("down", "--yes").code == 0  # by the cluster's own key
            finally:
                agent.terminate()

    def test_an_unknown_host_key_is_for_a_person_to_confirm(self, lab, command):
        bare = bare_metal(lab, "m1")
        bare.authorize("m1", "root", login(command))
        path = command.inventory(m1=at(bare, "m1", "root", f"ansible_ssh_private_key_file: {login(command)}"))

        assert "say --accept-new-host-keys" in command("up", "-i", path).err
        assert bare.root("m1", "ls -A /root/.clusterctl 2>&1 || :").count("No such file") == 1
        assert not command.state.exists()
        refused = command.at_terminal((("Trust it? [y/N]", "n"),), "up", "-i", path)
        assert "its host key was not confirmed" in refused.out
        assert command("up", "-i", path, "--accept-new-host-keys").code == 0
        assert no_changes(command("up", "-i", path))

    def test_a_changed_host_key_stops_one_machine_and_not_the_others(self, lab, command):
        bare = bare_metal(lab, "m1", "m2")
        for name in ("m1", "m2"):
            bare.authorize(name, "root", login(command))
        (command.ssh / "known_hosts").write_text(
            f"{bare.address('m1')} {bare.node('m1').host_keys[0]}\n{bare.address('m2')} {KEY}\n"
        )
        hashed = ["ssh-keygen", "-H", "-f", str(command.ssh / "known_hosts")]
        subprocess.run(hashed, check=True, capture_output=True)
        (command.ssh / "config").write_text(f"IdentityFile {login(command)}\n")
        path = command.inventory(m1=at(bare, "m1", "root"), m2=at(bare, "m2", "root"))

        ended = command("up", "-i", path)

        assert ended.code == 1
        assert "failed: m2: contact: first login: HOST KEY CHANGED" in ended.out
        assert "m1 : ok=" in ended.out
        assert [node.name for node in load_record(command.state / "record.yml").nodes] == ["m1"]
        assert "authorized_keys" in bare.root("m2", "ls /root/.ssh")
        assert "clusterctl" not in bare.root("m2", "cat /root/.ssh/authorized_keys; ls -A /root")

    def test_what_is_wrong_on_a_machine_is_one_line_and_the_others_go_on(self, lab, command):
        bare = bare_metal(lab, "m1", "m2", "m3", "m4")
        bare.authorize("m1", "root", login(command))
        bare.add_user("m2", "lab")  # may not use sudo
        bare.add_user("m3", "lab", groups="sudo")
        bare.root("m3", "echo lab:another | chpasswd")
        bare.authorize("m4", "root", login(command))
        bare.root("m4", "kill $(cat /run/sshd.pid)")
        (command.ssh / "config").write_text(f"IdentityFile {login(command)}\n")
        known(bare, command, "m1", "m2", "m3", "m4")
        path = command.inventory(
            m1=at(bare, "m1", "root"),
            m2=at(bare, "m2", "lab"),
            m3=at(bare, "m3", "lab"),
            m4=at(bare, "m4", "root"),
        )

        nobody = command("up", "-i", path)
        before = {name: bare.look(name) for name in ("m2", "m3")}
        ended = command.with_password("up", "-i", path)

        assert "m2: contact: first login: lab@" in nobody.out
        assert "nobody is there to type a password: say --password-fd N or --password-command" in nobody.out
        assert ended.code == 1
        lines = failed(ended)
        assert "lab may not use sudo there" in lines["m2"]
        assert "refuses the password" in lines["m3"]
        assert "refuses connections: no sshd there" in lines["m4"]
        assert "m1 : ok=" in ended.out
        assert set(differences(before["m2"], bare.look("m2"))) <= {"/home/lab/.sudo_as_admin_successful"}
        assert differences(before["m3"], bare.look("m3")) == {}
        assert no_changes(command("up"))  # of those that are in

    def test_a_full_disk_and_a_wrong_clock_are_one_line_each(self, lab, command):
        bare = bare_metal(lab, "m1", "m2", "m3", disk_mib=64)
        path = roots(bare, command, "m1", "m2", "m3")
        bare.root("m2", "cat /dev/zero > /fill 2> /dev/null || :")
        bare.root(
            "m3",
            'printf \'#!/bin/sh\\n/usr/bin/date -d "1 hour ago" "$@"\\n\' > /usr/local/bin/date; '
            "chmod 755 /usr/local/bin/date",
        )
        before = {name: bare.look(name) for name in ("m2", "m3")}

        ended = command("up", "-i", path)

        assert ended.code == 1
        lines = failed(ended)
        assert set(lines) == {"m2", "m3"}
        assert "what was there before cannot be kept: " in lines["m2"]
        assert "No space left on device" in lines["m2"]
        assert "m3: base: clock: its clock is 3" in lines["m3"]
        assert "unreachable=0    failed=0" in next(line for line in ended.out.splitlines() if "m1 : " in line)
        assert differences(before["m2"], bare.look("m2")) == {}  # nothing half kept
        bare.root("m2", "rm /fill")
        bare.root("m3", "rm /usr/local/bin/date")
        assert command("up", "-i", path).code == 0
        assert command("down", "--yes").code == 0
        assert differences(before["m2"], bare.look("m2")) == {}

    @pytest.mark.slow
    @pytest.mark.parametrize("through", ["", "jump"])
    def test_a_machine_unplugged_in_the_middle_is_named_in_time(self, lab, command, through):
        bare = bare_metal(lab, "m1", "m2")
        jump = f"clusterctl_jump: root@{bare.address('m1')}" if through else ""
        path = roots(bare, command, "m1", "m2", m2=jump)
        unplug = f"[ ! -e /var/lib/clusterctl ] || ip link set {INTERFACE} down\n"
        bare.root("m2", f"cat > /root/.bashrc << 'END'\n{unplug}END\n")
        before = bare.look("m2")

        started = time.monotonic()
        ended = command("up", "-i", path)
        took_s = time.monotonic() - started

        assert ended.code == 1
        assert took_s < 60
        assert set(failed(ended)) == {"m2"}
        assert "connection lost" in failed(ended)["m2"]
        assert "m1 : ok=" in ended.out
        bare.root("m2", f"ip link set {INTERFACE} up; rm /root/.bashrc")
        before.pop("/root/.bashrc")
        assert command("up").code == 0
        assert command("down", "--yes").code == 0
        assert differences(before, bare.look("m2")) == {}

    def test_a_machine_out_of_reach_at_down_is_kept_for_the_next(self, lab, command):
        bare = bare_metal(lab, "m1", "m2")
        path = roots(bare, command, "m1", "m2")
        before = {name: bare.look(name) for name in ("m1", "m2")}
        assert command("up", "-i", path).code == 0
        bare.root("m2", "kill $(cat /run/sshd.pid)")

        ended = command("down", "--yes")

        assert ended.code == 1
        assert "failed: m2: " in ended.out
        assert "cluster" in ended.out
        assert differences(before["m1"], bare.look("m1")) == {}
        assert [node.name for node in load_record(command.state / "record.yml").nodes] == ["m2"]
        bare.root("m2", "/usr/sbin/sshd")
        assert command("down", "--yes").code == 0
        assert differences(before["m2"], bare.look("m2")) == {}
        assert not command.state.exists()

        assert command("up", "-i", path).code == 0
        bare.root("m2", "kill $(cat /run/sshd.pid)")
        assert "forgotten: m2" in command.ok("down", "--yes", "--forget")
        assert not command.state.exists()

    def test_fewer_nodes_gives_back_and_more_than_there_are_is_refused(self, lab, command):
        bare = bare_metal(lab, "m1", "m2")
        path = roots(bare, command, "m1", "m2")
        before = bare.look("m2")
        assert command("up", "-i", path).code == 0

        assert "the inventory has 2: m1, m2" in command("up", "--nodes", "3").error_line
        ended = command("up", "--nodes", "1", "--yes")

        assert ended.code == 0
        assert differences(before, bare.look("m2")) == {}
        assert "m2" not in command.on("m1", "cat /etc/hosts ~/hosts")
        assert command("up", "--nodes", "2").code == 0

    def test_a_home_that_all_machines_share(self, lab, command):
        bare = bare_metal(lab, "m1", "m2")
        path = with_one_home(bare, command, "m1", "m2")
        before = {name: bare.look(name) for name in ("m1", "m2")}

        assert command("up", "-i", path).code == 0
        assert no_changes(command("up"))
        assert command.on("m1", "ssh m2 hostname").strip() == "m2"
        assert command("up", "--nodes", "1", "--yes").code == 0  # m2 leaves, its home is still m1's
        assert command.on("m1", "id -un").strip() == "ann"
        assert command("up", "--nodes", "2").code == 0
        assert command("down", "--yes").code == 0

        assert differences(before["m1"], bare.look("m1")) == {}
        assert differences(before["m2"], bare.look("m2")) == {}

    @pytest.mark.stack
    def test_machines_with_one_home_train_and_leave_nothing_in_it(self, lab, command):
        bare = bare_metal(lab, "m1", "m2", "m3")
        path = with_one_home(bare, command, "m1", "m2", alone=("m3",))
        assert command("up", "-i", path).code == 0
        script = command.home / "project" / "who.py"
        script.parent.mkdir()
        script.write_text(WHO)

        for launcher in ("mpirun", "torchrun"):
            out = command.ok("train", str(script), "--launcher", launcher, "--ppn", "2")

            told = re.findall(r"^\[(\d)\] (\d) (\d) on (m\d)$", out, re.M)
            assert sorted(told) == [(str(n), str(n), str(n % 2), f"m{n // 2 + 1}") for n in range(6)]
            folder = max((command.home / "runs").iterdir())
            logs = {path.name for path in (folder / "logs").iterdir()}
            assert logs == {"launcher.log", *(f"rank-00{n}.log" for n in range(6))}
            made = {path.name for path in (folder / "output").iterdir()}
            assert made == {"by-0", "by-1", "by-2", "by-3"}  # m3 has a home of its own
            assert bare.root("m1", "ls -A /home/ann/.clusterctl/runs") == ""

        assert command("down", "--yes").code == 0

    @pytest.mark.stack
    @pytest.mark.slow
    @pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
    def test_the_recipe_trains_and_goes_on_in_a_home_that_machines_share(self, lab, command, launcher):
        bare = bare_metal(lab, "m1", "m2")
        path = with_one_home(bare, command, "m1", "m2")
        assert command("up", "-i", path).code == 0
        few = ("--max_train_samples", "24", "--max_eval_samples", "8", "--save_strategy", "steps")

        command.ok("train", "run_qa", "--launcher", launcher, "--", *few, "--max_steps", "2")
        out = command.ok("train", "run_qa", "--resume", "last", "--", "--max_steps", "4")

        assert "going on from step 2" in out
        assert (max((command.home / "runs").iterdir()) / "output" / "model.safetensors").exists()

    @pytest.mark.slow
    def test_two_clusters_on_one_machine_go_separately(self, lab, command):
        bare = bare_metal(lab, "m1")
        path = roots(bare, command, "m1")
        bare.root("m1", "echo mine > /root/hosts")
        other = LabCommand(f"other{os.getpid()}", command.home)
        before = bare.look("m1")

        assert command("up", "-i", path).code == 0
        assert other("up", "-i", path).code == 0
        assert command("down", "--yes").code == 0

        assert no_changes(other("up"))
        assert f"clusterctl {command.name} " not in bare.root("m1", "cat /etc/hosts /root/.ssh/*")
        assert other("down", "--yes").code == 0
        assert differences(before, bare.look("m1")) == {}

    def test_a_cluster_of_another_clusterctl_is_not_taken_silently(self, lab, command, tmp_path):
        bare = bare_metal(lab, "m1")
        path = roots(bare, command, "m1")
        before = bare.look("m1")
        assert command("up", "-i", path).code == 0
        shutil.rmtree(command.state)

        ended = command("up", "-i", path)

        assert "another clusterctl has a cluster" in ended.error_line
        assert command("up", "-i", path, "--yes").code == 0
        assert command("down", "--yes").code == 0
        assert differences(before, bare.look("m1")) == {}

    @pytest.mark.parametrize(
        "shell",
        ["bash", pytest.param("tcsh", marks=pytest.mark.slow), pytest.param("fish", marks=pytest.mark.slow)],
    )
    def test_a_login_shell_that_talks_and_speaks_another_language(self, lab, command, shell):
        if not shutil.which(shell, path="/usr/bin"):
            pytest.skip(f"needs {shell}")
        bare = bare_metal(lab, "m1", "m2")
        for name in ("m1", "m2"):
            bare.add_user(name, "lab", groups="sudo", shell=f"/usr/bin/{shell}")
            bare.root(
                name,
                "cd /home/lab; printf 'export LANG=de_DE.UTF-8 LANGUAGE=de\\necho Achtung >&2\\n' > .bashrc; "
                "mkdir -p .config/fish; printf 'setenv LANG de_DE.UTF-8\\n' > .tcshrc; "
                "echo 'echo Willkommen im Labor' | tee -a .bashrc .tcshrc > .config/fish/config.fish; "
                "chown -R lab: .; " + f"runuser -u lab -- {shell} -c true",
            )
        known(bare, command, "m1", "m2")
        path = command.inventory(m1=at(bare, "m1", "lab"), m2=at(bare, "m2", "lab"))
        before = {name: bare.look(name) for name in ("m1", "m2")}

        ended = command.with_password("up", "-i", path)

        assert ended.code == 0, ended.out + ended.err
        assert no_changes(command("up"))
        assert "Willkommen" not in bare.root("m1", "cat /etc/hosts /home/lab/.ssh/* /home/lab/hosts")
        assert command("down", "--yes").code == 0
        for name in ("m1", "m2"):
            assert differences(before[name], bare.look(name)) == {}

    def test_an_unknown_jump_host_is_said_in_one_line(self, lab, command):
        bare = bare_metal(lab, "m1", "m2")
        for name in ("m1", "m2"):
            bare.authorize(name, "root", login(command))
        (command.ssh / "config").write_text(f"IdentityFile {login(command)}\n")
        known(bare, command, "m2")
        path = command.inventory(
            m2=at(bare, "m2", "root"),
            m1=f"ansible_host: 192.0.2.1, ansible_user: root, clusterctl_jump: root@{bare.address('m1')}",
        )

        ended = command("up", "-i", path)

        assert ended.code == 1
        assert f"the host key of jump host root@{bare.address('m1')} is not known here" in ended.out

    def test_purge_takes_the_stack_too(self, lab, command):
        bare = bare_metal(lab, "m1")
        path = roots(bare, command, "m1")
        assert command("up", "-i", path).code == 0
        bare.root("m1", "umount /opt/clusterctl/stacks; touch /opt/clusterctl/stacks/there")

        assert command("down", "--yes", "--purge").code == 0

        bare.root("m1", "test ! -e /opt/clusterctl")

    @pytest.mark.skipif(sys.base_prefix != "/usr", reason="nodes have the distribution's Python alone")
    def test_the_operators_own_machine_is_the_head(self, lab, command):
        bare = bare_metal(lab, "m1", "m2")
        path = roots(bare, command, "m1", "m2")
        (command.home / path).write_text(
            f"all:\n  vars: {{ansible_user: root, clusterctl: {{name: {command.name}}}}}\n  hosts:\n"
            f"    m1: {{ansible_connection: local}}\n    m2: {{ansible_host: {bare.address('m2')}}}\n"
        )
        root = Path(__file__).parents[1]
        for folder in (root, command.home):
            bare.root("m1", f"mkdir -p {folder}")
            share(os.getpid(), bare.pid("m1"), str(folder))
        bare.root("m1", f"cp -r {command.ssh}/. /root/.ssh; sed -i s,{command.ssh},~/.ssh, /root/.ssh/config")
        before = {name: bare.look(name) for name in ("m1", "m2")}

        def there(*words: str) -> str:
            settings = f"PYTHONPATH={root} HOME=/root XDG_STATE_HOME=/run/state"
            run = f"cd {command.home}; {settings} {sys.executable} -B -m run.cli {' '.join(words)} 2>&1"
            return bare.root("m1", run)

        assert "2 nodes in" in there("up", "-i", path)
        assert "changed=0" in there("up")
        assert "m2" in bare.root("m1", "HOME=/root ssh m2 hostname")
        assert "2 nodes given back" in there("down", "--yes")
        for name in ("m1", "m2"):
            assert differences(before[name], bare.look(name)) == {}

    def test_the_operators_own_machine_needs_an_sshd(self, command):
        (command.home / "lab.yml").write_text(
            f"all:\n  vars:\n    clusterctl: {{name: {command.name}}}\n  hosts:\n"
            "    here: {ansible_connection: local, ansible_port: 9, clusterctl_private_address: 127.0.0.1}\n"
        )

        assert "no sshd answers at 127.0.0.1 port 9" in command("up", "-i", "lab.yml").err
