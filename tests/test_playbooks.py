"""Playbooks are pure: what they plan for a node is compared here; that it works is shown on real nodes."""

from dataclasses import replace

import pytest

from playbooks import amx, base, ssh_mesh, training_env
from provision.facts import parse_facts
from provision.model import Cluster, Node
from provision.stacks import stack_named, version_problems
from tests.test_facts import recorded

NODES = tuple(Node(f"node{n}", f"10.0.0.{n}", host_keys=(f"ssh-ed25519 KEY{n}",)) for n in (1, 2))
CLUSTER = Cluster("demo", "local", NODES)
FACTS = {node.name: parse_facts(recorded(), 1700000000.5) for node in NODES}


def test_the_head_alone_gets_the_config_the_hostfile_and_the_private_key():
    head, worker = ({step.name for step in ssh_mesh.steps(node, CLUSTER, FACTS)} for node in NODES)

    assert head - worker == {"block demo in /home/ubuntu/.ssh/config", "file /home/ubuntu/hosts"}
    assert [len(ssh_mesh.key_steps(node, CLUSTER, FACTS)) for node in NODES] == [1, 0]


def test_strict_checking_is_never_off():
    config = "\n".join(ssh_mesh.mesh_config(CLUSTER, "/home/ubuntu").lines)

    assert config.count("StrictHostKeyChecking yes") == 2
    assert "StrictHostKeyChecking no" not in config


def test_a_port_that_is_not_22_stands_in_known_hosts():
    assert ssh_mesh.known_host_lines(replace(NODES[0], port=2222)) == (
        "[node1]:2222,[10.0.0.1]:2222 ssh-ed25519 KEY1",
    )


def test_plans_are_equal_when_only_the_clock_has_moved_on():
    later = {
        name: replace(facts, clock_s=1700000009.0, gathered_s=1700000010.0) for name, facts in FACTS.items()
    }

    assert base.steps(NODES[0], CLUSTER, later) == base.steps(NODES[0], CLUSTER, FACTS)


@pytest.mark.parametrize(
    ("offset", "problem"), [(0, None), (4, None), (-3600, "3600 s behind"), (9, "9 s ahead of")]
)
def test_a_clock_that_is_off_is_named(offset, problem):
    facts = replace(FACTS["node1"], clock_s=1000.0 + offset, gathered_s=1000.0)

    got = base.clock_problem(facts)
    assert (got is None) if problem is None else (problem in got)


@pytest.mark.parametrize(
    ("os_id", "version", "package"),
    [
        ("debian", "12", "libtcmalloc-minimal4"),
        ("debian", "13", "libtcmalloc-minimal4t64"),
        ("ubuntu", "22.04", "libtcmalloc-minimal4"),
        ("ubuntu", "24.04", "libtcmalloc-minimal4t64"),
        ("gentoo", "", "distribution 'gentoo' is not supported"),
    ],
)
def test_packages_by_distribution(os_id, version, package):
    step = base.packages(replace(FACTS["node1"], os_id=os_id, os_version=version))

    assert package in (*getattr(step, "names", ()), getattr(step, "problem", ""))


def with_cpu(*flags, kernel="6.8.0-1019-aws", vendor="GenuineIntel"):
    facts = FACTS["node1"]
    return replace(facts, kernel=kernel, cpu=replace(facts.cpu, flags=frozenset(flags), vendor=vendor))


def test_amx_needs_all_three_flags_and_the_kernel():
    assert amx.judge(with_cpu(*amx.FLAGS)).problem is None
    assert "no amx_bf16" in amx.judge(with_cpu("amx_tile", "amx_int8")).problem
    assert "older than 5.16" in amx.judge(with_cpu(*amx.FLAGS, kernel="5.15.0-1-generic")).problem
    assert "Sapphire Rapids" in amx.judge(with_cpu(vendor="AuthenticAMD")).fix


def test_amx_is_a_step_only_where_it_is_required():
    assert amx.steps(NODES[0], CLUSTER, FACTS) == ()
    (step,) = amx.steps(NODES[0], replace(CLUSTER, require_amx=True), FACTS)
    assert step.probe == ""
    assert step.drift("") is not None


def test_a_node_with_the_flags_has_to_multiply_a_tile_whatever_its_kernel_is_called():
    strict = replace(CLUSTER, require_amx=True)
    for kernel in ("6.8.0", "4.18.0-477.el8", "5.15.0-1-generic"):
        (step,) = amx.steps(NODES[0], strict, {"node1": with_cpu(*amx.FLAGS, kernel=kernel)})
        assert step == amx.TileMultiplied()


def test_a_simulated_cpu_passes_by_its_flags_and_is_called_simulated():
    strict = replace(CLUSTER, require_amx=True)
    simulated = with_cpu(*amx.FLAGS)
    simulated = replace(simulated, cpu=replace(simulated.cpu, simulated=True))
    (step,) = amx.steps(NODES[0], strict, {"node1": simulated})
    assert step.drift("") is None
    assert "simulated" in step.name


def test_a_stack_is_built_on_the_head_and_copied_to_the_workers_that_lack_it():
    assert training_env.steps(NODES[1], CLUSTER, FACTS) == ()
    _, copied = training_env.steps(NODES[0], CLUSTER, FACTS)
    assert copied.workers == ("node2",)
    assert training_env.steps(NODES[0], replace(CLUSTER, shared_stack=True), FACTS) == ()


def test_nodes_with_another_python_than_the_head_are_named():
    problem = training_env.python_problem(replace(FACTS["node2"], python="3.12"), FACTS["node1"])

    assert problem == "Python 3.12 here, 3.11 on the head node1"


def test_versions_that_differ_from_the_manifest_are_named():
    manifest = '{"versions": {"torch": "2.13.0+cpu", "numpy": "2.4.6"}}\n'

    assert version_problems(manifest + "torch-2.13.0+cpu.dist-info\nnumpy-2.4.6.dist-info\n") == []
    assert version_problems(manifest + "torch-2.12.0.dist-info\n") == [
        "numpy missing, wanted 2.4.6",
        "torch 2.12.0, wanted 2.13.0+cpu",
    ]
    assert version_problems("not json\n") == ["its manifest cannot be read"]


def test_a_stacks_name_changes_with_its_lock():
    stack = stack_named("native")

    assert stack.name != replace(stack, lock=stack.lock + "x==1\n").name
    assert stack.path == f"/opt/clusterctl/stacks/{stack.name}"
