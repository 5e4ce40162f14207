"""Which versions go together, and that the stacks' own locks do. No network, no nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision import stacks
from provision.errors import SettingsError
from provision.inventory import read_inventory
from provision.stacks import normalised, refuse_python, stack_named, stack_of
from provision.stacks.kinds import KINDS, NONE
from provision.stacks.versions import (
    ARCHIVED,
    CCL,
    IPEX,
    MATCHES,
    TORCH,
    archived_in,
    ccl_module,
    mismatches,
    require_matched,
)

TOO_NEW = "torch 2.9.0 has no intel-extension-for-pytorch: 2.8.0 is the last, for torch 2.8.0 (stack intel)"


@pytest.mark.parametrize("kind", KINDS)
def test_the_locks_versions_go_together(kind):
    assert list(mismatches(stack_named(kind).versions)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_has_all_that_its_in_file_asks_for(kind):
    asked = (Path(stacks.__file__).parent / f"{kind}.in").read_text().splitlines()
    names = [line.split("=")[0].split("<")[0] for line in asked if line and not line.startswith("#")]
    assert {normalised(name) for name in names} <= set(stack_named(kind).versions)


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({TORCH: "2.9.0", IPEX: "2.8.0"}, TOO_NEW),
        ({TORCH: "2.8.0+cpu", IPEX: "2.8.0"}, ""),
        ({TORCH: "2.7.1", IPEX: "2.8.0"}, "is not for torch 2.7.1: take 2.7.*, or torch 2.8.*"),
        ({TORCH: "1.12.1", CCL: "1.12.0"}, "is not for torch 1.12.1: take 1.12.100, or torch 1.12.0"),
        ({TORCH: "1.12.1", CCL: "1.12.100"}, ""),
        ({TORCH: "1.12.0", CCL: "1.12.100"}, "take 1.12.0, or torch 1.12.1"),
        ({TORCH: "2.1.0", CCL: "2.1.300+cpu"}, ""),
        ({TORCH: "2.3.0", CCL: "2.3.0"}, ""),
        ({TORCH: "2.3.0", CCL: "1.1.0"}, "known are torch 1.10.0 to 2.8.0"),
        ({TORCH: "2.13.0", CCL: "2.8.0"}, "torch 2.13.0 has no oneccl-bind-pt: 2.8.0 is the last"),
        ({"transformers": "5.23.0", IPEX: "2.8.0"}, "4.56.2 is the last, later ones have no --use_ipex"),
        ({"accelerate": "1.10.1", IPEX: "2.8.0"}, "1.7.0 is the last"),
        ({"accelerate": "1.10.1", IPEX: "2.6.0"}, ""),
        ({"transformers": "5.23.0", TORCH: "2.13.0"}, ""),
        ({}, ""),
    ],
)
def test_what_does_not_match_is_said_with_what_would(versions, said):
    found = "; ".join(mismatches(versions))
    assert said in found if said else not found


def test_bindings_had_another_name_before_1_12():
    assert [ccl_module(torch) for torch in ("1.11.0", "1.12.0", "2.8.0")] == [
        *("torch_ccl", "oneccl_bindings_for_pytorch", "oneccl_bindings_for_pytorch"),
    ]
    assert all(match.ccl_module == ccl_module(match.torch) for match in MATCHES)
    assert all(match.source.startswith("https://") for match in MATCHES)


def test_what_is_archived_is_named_with_its_successor():
    assert archived_in(stack_named("native").versions) == ()
    assert archived_in(stack_named("intel").versions) == ARCHIVED
    assert all("native" in str(each) and "https://" in str(each) for each in ARCHIVED)


def test_a_mismatch_is_refused():
    with pytest.raises(SettingsError, match=r"^mine\.txt: torch 2\.9\.0 has no"):
        require_matched({TORCH: "2.9.0", IPEX: "2.8.0"}, "mine.txt")


# --- what is to be built -----------------------------------------------------------------------


def test_without_an_index_of_its_own_a_stack_is_another_one_and_has_no_ccl():
    whole, without = stack_named("intel"), stack_named("intel", stack_index=NONE)
    assert whole.own_lines == ("oneccl_bind_pt==2.8.0+cpu",)
    assert whole.stack_index == KINDS["intel"].stack_index
    assert without.own_lines == ()
    assert set(whole.versions) - set(without.versions) == {CCL}
    assert whole.name != without.name


def test_an_unknown_stack_names_those_there_are():
    with pytest.raises(SettingsError, match="no stack 'x'; there is native, intel, article-2022"):
        stack_named("x")


@pytest.mark.parametrize(
    ("kind", "python", "refused"),
    [
        ("native", "3.11.2", False),
        ("native", "3.10.12", True),
        ("native", "3.14.0", False),
        ("intel", "3.10.12", False),
        ("intel", "3.14.0", True),
        ("article-2022", "3.10.12", False),
        ("article-2022", "3.11.2", True),
    ],
)
def test_a_python_that_the_packages_were_not_built_for_is_refused(kind, python, refused):
    stack = stack_named(kind)
    if not refused:
        refuse_python(stack, python, "node1")
        return
    with pytest.raises(SettingsError, match=rf"node1: stack {kind} needs Python .*, {python} is there"):
        refuse_python(stack, python, "node1")


def inventory(tmp_path, **settings):
    lines = "".join(f"      {key}: {value}\n" for key, value in settings.items())
    path = tmp_path / "here.yml"
    path.write_text(f"all:\n  vars:\n    clusterctl:\n      nodes: 1\n{lines}")
    return read_inventory(path)


def test_the_inventory_says_where_packages_come_from(tmp_path):
    stack = stack_of(inventory(tmp_path, stack="intel", stack_index="/wheels", torch_index="none"))
    assert (stack.kind, stack.stack_index, stack.torch_index) == ("intel", "/wheels", "none")


def test_what_a_script_needs_beside_the_stack_makes_it_another_one(tmp_path):
    plain = stack_named("native")
    stack = stack_of(inventory(tmp_path, packages="[evaluate, 'rouge-score==0.1.2', numpy, evaluate]"))
    assert stack.packages == ("evaluate", "rouge-score==0.1.2")  # numpy is in it already
    assert stack.lock == plain.lock
    assert stack.name != plain.name
    assert stack.name == stack_named("native", packages=["rouge-score==0.1.2", "evaluate"]).name
    assert stack_named("native", packages=[f"NumPy=={plain.versions['numpy']}"]) == plain
    assert stack_named("native", packages=["datasets[audio]"]).packages == ("datasets[audio]",)


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("transformers==4.55.4", r"stack native has transformers 5\.23\.0, and is matched as it is"),
        ("NumPy<2", r"stack native has NumPy 2\.5\.5, and is .* give a lock of your own, stack: mine\.txt"),
        ("--index-url https://x", r"'--index-url https://x' is no package; write each as pip takes it"),
        ("two words", "is no package"),
    ],
)
def test_a_package_that_cannot_go_with_the_stack_is_refused(package, said):
    with pytest.raises(SettingsError, match=f"^packages: .*{said}"):
        stack_named("native", packages=[package])


def test_a_lock_of_ones_own_is_found_beside_the_inventory_and_checked(tmp_path):
    lock = tmp_path / "mine.txt"
    lock.write_text("# mine\ntorch==2.8.0\nintel-extension-for-pytorch==2.8.0\n")
    stack = stack_of(inventory(tmp_path, stack="mine.txt"))
    assert stack.name.startswith("mine-")
    assert stack.versions == {TORCH: "2.8.0", IPEX: "2.8.0"}

    lock.write_text("torch==2.9.0\nintel-extension-for-pytorch==2.8.0\n")
    with pytest.raises(SettingsError, match=r"mine\.txt: torch 2\.9\.0 has no"):
        stack_of(inventory(tmp_path, stack="mine.txt"))
    with pytest.raises(SettingsError, match=r"nowhere\.txt: No such file"):
        stack_of(inventory(tmp_path, stack="nowhere.txt"))
