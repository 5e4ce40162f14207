"""Kernel settings, mounts, packages and services, on a real node."""

import pytest

from provision.step import Status
from provision.steps import AptPackages, Mount, Service, Sysctl
from tests.local_nodes import needs_nodes
from tests.step_cases import CHECK
from tests.step_nodes import node as node

pytestmark = needs_nodes

CHANGED, OK, FAILED = Status.CHANGED, Status.OK, Status.FAILED
FSTAB = (
    "# static\nUUID=1-2 / ext4 defaults 0 1\n/dev/sdb1\t/mnt/databank  xfs noauto 0 0\n"
    "#nfs:/x /mnt/data nfs4 ro 0 0"
)


@pytest.fixture
def fstab(node):
    node.sh(f"printf %s '{FSTAB}' > /etc/fstab; chmod 640 /etc/fstab; mkdir -p /srv/full; touch /srv/full/it")
    return lambda: node.host.run("cat /etc/fstab", sudo=True).stdout


def mounts(node, path="/mnt/data"):
    return [line.split()[:4] for line in node.sh("cat /proc/self/mounts").splitlines() if f" {path} " in line]


def test_a_setting_holds_now_and_is_kept(node):
    step = Sysctl("net.ipv4.tcp_rmem", "4096 65536 8388608")

    (result,) = node.run(step, mode=CHECK)
    assert result.detail.endswith(", wanted 4096 65536 8388608")
    assert node.statuses(step) == [CHANGED]
    assert node.statuses(step) == [OK]
    assert node.sh("sysctl -n net.ipv4.tcp_rmem").split() == step.value.split()
    assert node.sh("sysctl -p /etc/sysctl.d/90-clusterctl-net.ipv4.tcp_rmem.conf").split("= ")[1] == (
        "4096 65536 8388608"
    )

    node.sh("rm /etc/sysctl.d/90-clusterctl-*")
    (result,) = node.run(step)
    assert result.detail == "not kept in /etc/sysctl.d/90-clusterctl-net.ipv4.tcp_rmem.conf"


def test_a_key_whose_part_has_a_dot(node):
    node.sh("ip link add eth7.5 type veth peer name eth7p")
    step = Sysctl("net.ipv4.conf.eth7/5.forwarding", "1")

    assert node.statuses(step) == [CHANGED]
    assert node.sh("cat /proc/sys/net/ipv4/conf/eth7.5/forwarding") == "1"
    node.sh("echo 0 > /proc/sys/net/ipv4/conf/eth7.5/forwarding; sysctl -q --system 2> /dev/null || true")
    assert node.statuses(step) == [OK]  # sysctl found the setting in what was kept


def test_what_the_kernel_refuses_is_told_and_not_kept(node):
    wrong = Sysctl("net.core.somaxconn", "many")
    read_only = Sysctl("vm.swappiness", "1")
    unknown = Sysctl("net.core.nonsense", "1")

    details = {step.key: node.run(step)[0] for step in (wrong, read_only, unknown)}
    assert {result.status for result in details.values()} == {FAILED}
    assert "Invalid argument" in details["net.core.somaxconn"].detail
    assert "Read-only file system" in details["vm.swappiness"].detail
    assert unknown.drift("") == "this kernel has no such setting; is its module loaded?"
    assert "clusterctl" not in node.sh("ls /etc/sysctl.d")


def test_a_setting_killed_at_any_command_converges(node):
    for at in range(1, 20):
        step = Sysctl("net.core.somaxconn", str(5000 + at))
        died = node.killed_at(step, at)
        assert node.statuses(step)[0] in (OK, CHANGED)
        assert node.sh("cat /proc/sys/net/core/somaxconn; ls -A /etc/sysctl.d | grep -c clusterctl") == (
            f"{5000 + at}\n1"
        )
        if not died:
            break
    assert at > 5


def test_a_mount_is_there_now_and_has_its_line_and_other_lines_stay(node, fstab):
    step = Mount("share", "/mnt/data", "tmpfs", ("size=1m", "nosuid"))

    (result,) = node.run(step, mode=CHECK)
    assert result.detail == "not mounted; its line in /etc/fstab differs"
    assert "+share\t/mnt/data\ttmpfs\tsize=1m,nosuid\t0\t0" in result.diff
    assert node.statuses(step) == [CHANGED]
    assert node.statuses(step) == [OK]
    assert fstab() == f"{FSTAB}\nshare\t/mnt/data\ttmpfs\tsize=1m,nosuid\t0\t0\n"
    assert node.sh("stat -c %a /etc/fstab") == "640"
    assert mounts(node)[0][:3] == ["share", "/mnt/data", "tmpfs"]

    node.sh("umount /mnt/data && mount /mnt/data")  # as a boot does
    assert node.statuses(step) == [OK]
    assert node.statuses(Mount("share", "/mnt/data", "tmpfs", present=False)) == [CHANGED]
    assert (fstab(), mounts(node)) == (FSTAB + "\n", [])


def test_a_mount_that_changed_is_put_right(node, fstab):
    node.run(Mount("share", "/mnt/data", "tmpfs", ("size=1m",)))
    node.sh("touch /mnt/data/mine")

    (result,) = node.run(Mount("share", "/mnt/data", "tmpfs", ("size=1m", "ro", "noexec")))
    assert result.detail == "mounted without ro,noexec; its line in /etc/fstab differs"
    assert {"ro", "noexec"} <= set(mounts(node)[0][3].split(","))
    assert node.sh("ls /mnt/data") == "mine"

    (result,) = node.run(Mount("other", "/mnt/data", "tmpfs", ("size=1m",)))
    assert result.detail.startswith("share (tmpfs) is mounted, wanted other (tmpfs)")
    assert [mount[0] for mount in mounts(node)] == ["other"]
    assert node.sh("ls /mnt/data") == ""
    assert fstab().count("/mnt/data\t") == 1


def test_a_mount_in_use_is_not_taken_away_from_its_user(node, fstab):
    node.run(Mount("share", "/mnt/data", "tmpfs"))
    node.sh("cd /mnt/data; sleep 60 > /dev/null 2>&1 < /dev/null & sleep 0.2")
    before = fstab()

    (result,) = node.run(Mount("other", "/mnt/data", "tmpfs"))
    assert result.status is FAILED
    assert "busy" in result.detail
    assert fstab() == before


def test_a_folder_bound_read_only_at_a_path_with_a_space(node, fstab):
    step = Mount("/srv/full", "/mnt/my data", "none", ("bind", "ro"))

    assert node.statuses(step) == [CHANGED]
    assert node.statuses(step) == [OK]
    assert node.sh("ls '/mnt/my data'") == "it"
    node.sh("touch '/mnt/my data/new'", expect=1)
    node.sh("touch /srv/full/new; umount '/mnt/my data'; mount '/mnt/my data'")
    assert node.sh("ls '/mnt/my data'") == "it\nnew"


def test_what_cannot_be_mounted_gets_no_line(node, fstab):
    (result,) = node.run(Mount("198.18.0.1:/none", "/mnt/data", "nfs4", ("soft", "timeo=5")))

    assert result.status is FAILED
    assert "198.18.0.1:/none was not mounted" in result.detail
    assert fstab() == FSTAB
    (result,) = node.run(Mount("x", "/mnt/data", "nonsense"))
    assert result.detail.endswith("special device x does not exist.")


def test_a_share_is_known_by_the_names_the_kernel_gives_it():
    step = Mount("nas:/export/", "/mnt/data", "nfs", ("hard", "noatime"))
    line = "nas:/export\t/mnt/data\tnfs\thard,noatime\t0\t0\n"
    seen = "nas:/export /mnt/data nfs4 rw,noatime,vers=4.2,hard 0 0\n"
    efs = "127.0.0.1:/ /mnt/data nfs4 rw,relatime 0 0\n"

    assert step.drift(seen + "fstab\n" + line.replace("export", "export/")) is None
    assert step.drift(seen.replace("nas", "old") + "fstab\n" + line.replace("export", "export/")) == (
        "old:/export (nfs4) is mounted, wanted nas:/export/ (nfs)"
    )
    assert Mount("fs-1:/", "/mnt/data", "efs", ("tls",)).drift(
        f"{efs}fstab\nfs-1:/\t/mnt/data\tefs\ttls\t0\t0\n"
    ) is None  # fmt: skip


def test_a_mount_killed_at_any_command_converges(node, fstab):
    for at in range(1, 30):
        step = Mount(f"share{at}", "/mnt/data", "tmpfs", ("size=1m",))
        died = node.killed_at(step, at)
        assert fstab().startswith(FSTAB)
        assert node.statuses(step)[0] in (OK, CHANGED)
        assert fstab() == f"{FSTAB}\nshare{at}\t/mnt/data\ttmpfs\tsize=1m\t0\t0\n"
        assert [mount[0] for mount in mounts(node)] == [f"share{at}"]
        if not died:
            break
    assert at > 9
    assert "clusterctl" not in node.sh("ls -A /etc")


_REPOSITORY = """
set -e
rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*; mkdir -p /srv/repo; cd /srv/repo
for name in tool-one tool-two; do
    mkdir -p $name/DEBIAN $name/opt
    printf 'Package: %s\\nVersion: 1\\nArchitecture: all\\nMaintainer: x\\nDescription: x\\n' $name \\
        > $name/DEBIAN/control
    echo hello > $name/opt/$name
done
cat > tool-two/DEBIAN/postinst <<'END'
#!/bin/sh
[ -e /tmp/kill ] || exit 0
rm /tmp/kill; pid=$PPID all=$$
until [ "$(cat /proc/$pid/comm)" = sshd ]; do all="$pid $all"; pid=$(cut -d' ' -f4 /proc/$pid/stat); done
kill -9 $all
END
chmod 755 tool-two/DEBIAN/postinst
for name in tool-one tool-two; do
    dpkg-deb -Zxz --build $name $name.deb > /dev/null
    cat $name/DEBIAN/control; echo "Filename: ./$name.deb"; echo "Size: $(stat -c %s $name.deb)"
    echo "SHA256: $(sha256sum < $name.deb | cut -d' ' -f1)"; echo
done > Packages
echo 'deb [trusted=yes] file:/srv/repo ./' > /etc/apt/sources.list
"""


def test_packages_are_installed_also_after_dpkg_was_killed_in_its_midst(node):
    node.sh(_REPOSITORY)
    step = AptPackages(("coreutils", "tool-one", "tool-two"))

    (result,) = node.run(step, mode=CHECK)
    assert result.detail == "not installed: tool-one tool-two"
    node.sh("touch /tmp/kill")
    assert node.statuses(step) == [FAILED]
    assert "installed" not in node.sh("dpkg-query -W -f='${db:Status-Status}' tool-two").split()
    assert node.statuses(step) == [CHANGED]
    assert node.statuses(step) == [OK]
    assert node.sh("dpkg --audit; cat /opt/tool-two") == "hello"

    (result,) = node.run(AptPackages(("tool-three",)))
    assert "Unable to locate package tool-three" in result.detail


def test_a_node_without_systemd_says_so(node):
    (foreseen,) = node.run(Service("chrony"), mode=CHECK)
    (result,) = node.run(Service("chrony"))

    assert foreseen.detail == "no systemd runs on this node, so services cannot be managed there"
    assert (result.status, result.detail) == (FAILED, f"n01: chrony: {foreseen.detail}")


def test_check_mode_touches_nothing_on_the_whole_disk(node, fstab):
    before = node.seen()
    kernel = node.sh("cat /proc/sys/net/core/somaxconn")
    steps = (
        Sysctl("net.core.somaxconn", "1234"),
        Mount("share", "/mnt/data", "tmpfs"),
        AptPackages(("tool-one",)),
        Service("chrony"),
    )

    assert [result.status for result in node.run(*steps, mode=CHECK)] == [CHANGED] * 4
    assert node.seen() == before
    assert (node.sh("cat /proc/sys/net/core/somaxconn"), mounts(node)) == (kernel, [])
