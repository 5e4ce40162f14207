"""Clusters, facts and plans for tests of the training half."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from provision.facts import CpuInfo, NodeFacts, Topology
from provision.model import Cluster, Node
from run.job import TrainJob
from run.layout import LayoutSettings, NodeLayout, lay_out_all
from run.program import recipe_program
from tests.test_layout import topology

STACK = "/opt/clusterctl/stacks/native-1a2b"
RUN_ID = "20261121-101500-run_qa-ab12"


def node(number: int) -> Node:
    return Node(f"node{number}", f"203.0.113.{number}", private_address=f"10.0.0.{number}")


def cluster(count: int) -> Cluster:
    return Cluster("demo", "static", tuple(node(number) for number in range(1, count + 1)))


def facts_of(known: Topology, interface: str = "eth0") -> NodeFacts:
    return NodeFacts(
        hostname="h",
        os_id="debian",
        os_version="12",
        kernel="6.1",
        python="3.11",
        cpu=CpuInfo("GenuineIntel", "Xeon", frozenset()),
        topology=known,
        memory_gib=8.0,
        clock_s=0.0,
        gathered_s=0.0,
        interface=interface,
        home="/home/ubuntu",
    )


def facts(*topologies: Topology) -> dict[str, NodeFacts]:
    """node1 reaches the mesh over eth1, all others over eth2: interfaces differ in the wild."""
    return {
        f"node{number}": facts_of(known, "eth1" if number == 1 else "eth2")
        for number, known in enumerate(topologies, start=1)
    }


def layouts(known: Mapping[str, NodeFacts], settings: LayoutSettings | None = None) -> dict[str, NodeLayout]:
    return lay_out_all(known, settings or LayoutSettings())


def job(uploads: Mapping[str, Path] | None = None) -> TrainJob:
    return TrainJob(
        recipe_program("run_qa"),
        RUN_ID,
        ("--num_train_epochs", "1", "--output_dir", "output"),
        uploads or {},
        {"HF_HUB_OFFLINE": "1"},
    )


TWO_CORES = topology(2)
TWO_SOCKETS = topology(2, 2)
