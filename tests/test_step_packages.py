"""Packages: which a distribution gets, what rpm and dpkg answer."""

from dataclasses import replace

import pytest

from playbooks import base
from provision.facts import parse_facts
from provision.steps import AptPackages, DnfPackages, Verdict, packages_for
from tests.shell_host import ShellHost
from tests.test_facts import recorded

NAMES = {"debian": ("nfs-common",), "fedora": ("nfs-utils",), "rhel": ("nfs-utils-rhel",)}


def node(os_release: str):
    return parse_facts(recorded(files={"/etc/os-release": os_release}), 0)


@pytest.mark.parametrize(
    ("os_release", "step"),
    [
        ('ID=debian\nVERSION_ID="12"', AptPackages(("nfs-common",))),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"', AptPackages(("nfs-common",))),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"', AptPackages(("nfs-common",))),
        ("ID=fedora\nVERSION_ID=42", DnfPackages(("nfs-utils",))),
        ('ID="amzn"\nID_LIKE="fedora"\nVERSION_ID="2023"', DnfPackages(("nfs-utils",))),
        ('ID="amzn"\nID_LIKE="centos rhel fedora"\nVERSION_ID="2"', DnfPackages(("nfs-utils-rhel",))),
        ('ID="rhel"\nID_LIKE="fedora"', DnfPackages(("nfs-utils-rhel",))),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', DnfPackages(("nfs-utils-rhel",))),
    ],
)
def test_the_nearest_name_of_the_distribution_or_what_it_comes_from_counts(os_release, step):
    assert packages_for(node(os_release), NAMES) == step


@pytest.mark.parametrize("os_release", ["ID=gentoo", 'ID="opensuse-leap"\nID_LIKE="suse opensuse"', ""])
def test_a_distribution_that_nobody_knows_is_named(os_release):
    step = packages_for(node(os_release), NAMES)

    assert isinstance(step, Verdict)
    assert step.drift("") == f"distribution {node(os_release).os_id!r} is not supported"
    assert step.fix == "packages are named for debian, fedora, rhel, and for what is like them"


def test_a_distribution_with_neither_apt_nor_dnf_is_not_given_to_either():
    assert isinstance(packages_for(node("ID=suse"), {"suse": ("nfs-client",)}), Verdict)


@pytest.mark.parametrize(
    ("os_release", "expected"),
    [
        ("ID=fedora", ("openssh-clients", "python3", "gperftools-libs")),
        ('ID=rocky\nID_LIKE="rhel centos fedora"', ("openssh-clients", "python3")),
        ('ID=ol\nID_LIKE="fedora"', ("openssh-clients", "python3")),
        ('ID=amzn\nID_LIKE="fedora"', ("openssh-clients", "python3")),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"', ("openssh-client", "python3", "python3-venv")),
    ],
)
def test_base_needs_tcmalloc_only_where_the_distribution_itself_has_it(os_release, expected):
    assert base.packages(node(os_release)).names == expected


def test_the_answers_of_rpm_are_understood():
    """As printed by rpm 4.18: one line or more for each name, and what is not there said so."""
    step = DnfPackages(("openssh-clients", "nfs-client", "/usr/bin/git", "/opt/none", "gone", "python3"))
    actual = """\
rpm
openssh-clients-9.6p1-1.fc41.x86_64
no package provides nfs-client
file /usr/bin/git is not owned by any package
error: file /opt/none: No such file or directory
no package provides gone
python3-3.13.0-1.fc41.x86_64
python3-3.13.0-1.fc41.i686
"""

    assert step.drift(actual) == "not installed: nfs-client /usr/bin/git /opt/none gone"
    assert replace(step, names=("openssh-clients", "python3")).drift(actual) is None


def test_a_node_without_rpm_has_not_got_its_packages():
    for actual in ("sh: 2: rpm: not found\n", ""):
        assert DnfPackages(("python3",)).drift(actual) == "there is no rpm on this node"


def test_packages_that_are_installed_are_no_drift():
    step = AptPackages(("coreutils", "surely-no-such-package"))
    actual = ShellHost().run(step.probe).stdout

    assert step.drift(actual) == "not installed: surely-no-such-package"
