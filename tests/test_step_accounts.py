"""Users and their keys, on a real node."""

import pytest

from provision.step import Status
from provision.steps import AuthorizedKey, Directory, User
from tests.local_nodes import needs_nodes
from tests.step_cases import CHECK
from tests.step_nodes import node as node

pytestmark = needs_nodes

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
OTHER = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQAB other@laptop"
CHANGED, OK, FAILED = Status.CHANGED, Status.OK, Status.FAILED


def test_a_user_is_made_as_wanted_and_can_log_in_by_key_alone(node):
    ann = User("ann", ("adm", "sudo"), "/bin/bash", "/srv/people/ann", uid=2345)

    assert node.statuses(ann) == [CHANGED]
    assert node.statuses(ann) == [OK]
    assert node.sh("id ann") == "uid=2345(ann) gid=2345(ann) groups=2345(ann),4(adm),27(sudo)"
    assert node.sh("getent passwd ann").endswith(":/srv/people/ann:/bin/bash")
    assert node.sh("getent shadow ann").split(":")[1] == "*"
    assert node.sh("stat -c '%U %G %a' /srv/people/ann") == "ann ann 700"
    assert node.sh("ls -A /srv/people/ann") == node.sh("ls -A /etc/skel")


def test_what_a_user_has_besides_is_left(node):
    node.sh("useradd -m -G adm -s /bin/sh bob; echo mine > /home/bob/file; usermod -p secret bob")
    step = User("bob", ("sudo",), "/bin/bash")

    (result,) = node.run(step)
    assert result.detail == "shell /bin/sh, wanted /bin/bash; not in sudo"
    assert node.sh("id -Gn bob") == "bob adm sudo"
    assert node.sh("getent shadow bob").split(":")[1] == "secret"
    assert node.statuses(step, User("bob")) == [OK, OK]

    node.run(User("bob", home="/srv/bob"))
    assert node.sh("cat /home/bob/file; stat -c %U /srv/bob") == "mine\nbob"


def test_a_system_user_has_a_low_number_and_no_home(node):
    step = User("daemon2", system=True, shell="/usr/sbin/nologin")

    assert node.statuses(step) == [CHANGED]
    assert node.statuses(step) == [OK]
    assert int(node.sh("id -u daemon2")) < 1000
    node.sh("ls /home/daemon2", expect=2)


def test_a_number_that_is_another_is_not_changed_but_told(node):
    node.sh("useradd -m bob")
    (result,) = node.run(User("bob", uid=3000))

    assert result.status is FAILED
    assert "its files would keep the old one" in result.detail
    (result,) = node.run(User("carol", ("nobodies",)))
    assert "group 'nobodies' does not exist" in result.detail


def test_a_user_killed_at_any_command_is_whole_after_the_next_run(node):
    for at in range(1, 30):
        step = User(f"u{at}", ("adm",), "/bin/sh")
        died = node.killed_at(step, at)
        assert node.statuses(step)[0] in (OK, CHANGED)
        assert node.statuses(step) == [OK]
        assert node.sh(f"stat -c '%U %a' /home/u{at}; id -Gn u{at}") == f"u{at} 700\nu{at} adm"
        if not died:
            break
    assert at > 4
    assert "clusterctl" not in node.sh("ls -A /home")


def test_useradd_killed_in_its_midst_is_finished_by_the_next_run(node):
    for delay in range(14):
        name = f"k{delay}"
        node.sh(f"useradd -M {name} & sleep 0.00{delay:02}; kill -9 $!; wait; true")
        assert node.statuses(User(name))[0] in (OK, CHANGED), name
        assert node.statuses(User(name)) == [OK]


def test_an_account_that_is_half_made_is_finished(node):
    node.sh("echo 'half:x:1500:1500::/home/half:/bin/sh' >> /etc/passwd")

    (result,) = node.run(User("half"))
    assert result.detail == "is half made; no folder /home/half"
    assert node.sh("id -gn half; getent shadow half | cut -d: -f2; ls -d /home/half") == "half\n*\n/home/half"
    assert node.statuses(User("half")) == [OK]


def test_a_key_lets_its_user_in_and_other_lines_stay(node):
    node.sh("useradd -m ann; install -d -o ann -g ann -m 700 /home/ann/.ssh")
    theirs = f"# mine\n{OTHER}\n#{KEY} parked"
    node.sh(f"printf %s '{theirs}' > /home/ann/.ssh/authorized_keys; chown ann: /home/ann/.ssh/*")
    step = AuthorizedKey("ann", f"{KEY} desk")

    assert node.statuses(step) == [CHANGED]
    assert node.statuses(step) == [OK]
    assert node.sh("cat ~ann/.ssh/authorized_keys") == f"{theirs}\n{KEY} desk"

    restricted = AuthorizedKey("ann", f'from="10.0.0.0/8",no-pty {KEY} desk')
    (result,) = node.run(restricted, mode=CHECK)
    assert result.detail == "key missing or with other options"
    node.run(restricted)
    assert node.sh("tail -n1 ~ann/.ssh/authorized_keys") == restricted.key
    assert node.statuses(AuthorizedKey("ann", KEY, present=False)) == [CHANGED]
    assert node.sh("cat ~ann/.ssh/authorized_keys") == theirs


def test_a_key_makes_the_files_that_sshd_accepts(node):
    steps = (User("ann"), AuthorizedKey("ann", KEY))

    assert [result.detail for result in node.run(*steps, mode=CHECK)] == [
        "no such user",
        "there is no user ann",
    ]
    assert node.statuses(*steps) == [CHANGED, CHANGED]
    assert node.sh("stat -c '%U %G %a' ~ann/.ssh ~ann/.ssh/authorized_keys") == "ann ann 700\nann ann 600"


def test_a_key_for_nobody_is_told(node):
    (result,) = node.run(AuthorizedKey("nobody2", KEY))

    assert result.status is FAILED
    assert "there is no user nobody2 to let in" in result.detail
    assert node.statuses(AuthorizedKey("nobody2", KEY, present=False)) == [OK]


def test_a_user_who_links_its_keys_to_a_file_of_roots_gets_nothing_written_there(node):
    node.sh("useradd -m eve; install -d -o eve -g eve -m 700 /home/eve/.ssh")
    node.sh(
        "echo secret > /etc/target; chmod 600 /etc/target; ln -s /etc/target /home/eve/.ssh/authorized_keys"
    )

    (result,) = node.run(AuthorizedKey("eve", KEY))
    assert result.status is FAILED
    assert "Permission denied" in result.detail
    assert node.sh("cat /etc/target; stat -c '%U %a' /etc/target") == "secret\nroot 600"


def test_a_key_killed_at_any_command_is_there_after_the_next_run(node):
    step = AuthorizedKey("ann", KEY)
    node.sh("useradd -m ann")
    for at in range(1, 30):
        node.sh("rm -rf ~ann/.ssh; install -d -o ann -m 700 ~ann/.ssh")
        node.sh(f"echo '{OTHER}' > ~ann/.ssh/authorized_keys; chown ann: ~ann/.ssh/*")
        died = node.killed_at(step, at)
        assert node.sh("head -n1 ~ann/.ssh/authorized_keys") == OTHER
        node.run(step)
        assert node.sh("cat ~ann/.ssh/authorized_keys; ls -A ~ann/.ssh") == f"{OTHER}\n{KEY}\nauthorized_keys"
        if not died:
            break
    assert at > 8


@pytest.mark.parametrize("missing", ["", "useradd -m ann"])
def test_check_mode_touches_nothing_on_the_whole_disk(node, missing):
    if missing:
        node.sh(missing)
    before = node.seen()
    steps = (
        User("ann", ("adm", "sudo"), "/bin/sh"),
        AuthorizedKey("ann", KEY),
        Directory("/home/ann", "ann", "711"),
    )

    assert [result.status for result in node.run(*steps, mode=CHECK)] == [CHANGED] * 3
    assert node.seen() == before
