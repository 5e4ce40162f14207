"""Plans of the mpirun launcher, compared whole; recipes, run ids and arguments of a job."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from provision.errors import SettingsError
from run.job import LaunchPlan, TrainJob, make_job, new_run_id, shell_line, with_script_args
from run.launchers.common import Ground
from run.launchers.mpirun import plan
from run.program import recipe_program
from tests.golden import assert_golden
from tests.run_cases import RUN_ID, STACK, TWO_CORES, TWO_SOCKETS, cluster, facts, job, layouts


def planned(count: int, *topologies: object, wanted: TrainJob | None = None) -> LaunchPlan:
    known = facts(*topologies)  # type: ignore[arg-type]
    return plan(Ground(wanted or job(), cluster(count), layouts(known), known, STACK, 29501))


def test_plan_for_two_equal_nodes() -> None:
    data = {"data/train_file/squad.json": Path("/home/me/squad.json")}
    assert_golden("mpirun-equal.txt", planned(2, TWO_SOCKETS, TWO_SOCKETS, wanted=job(data)).render())


def test_plan_for_uneven_nodes() -> None:
    assert_golden("mpirun-uneven.txt", planned(2, TWO_SOCKETS, TWO_CORES).render())


def test_uneven_nodes_get_a_machinefile_because_f_ignores_counts() -> None:
    made = planned(2, TWO_SOCKETS, TWO_CORES)
    assert made.argv[1:5] == ("-machinefile", "hostfile", "-n", "3")
    assert made.files["hostfile"] == "node1:2\nnode2:1\n"


def test_fewer_nodes_than_the_cluster_has_get_a_machinefile() -> None:
    made = planned(3, TWO_CORES, TWO_CORES)
    assert made.files["hostfile"] == "node1:1\nnode2:1\n"
    assert made.nodes == ("node1", "node2")


def test_users_of_different_names_each_run_it_in_their_own_home() -> None:
    known = facts(TWO_SOCKETS, TWO_CORES)
    known["node2"] = replace(known["node2"], home="/home/ann")
    nodes = (cluster(2).head, replace(cluster(2).nodes[1], user="ann"))
    theirs = replace(cluster(2), nodes=nodes)

    made = plan(Ground(job(), theirs, layouts(known), known, STACK, 29501))

    node1, node2 = " ".join(made.argv).split(" : ")
    rank = f".clusterctl/runs/{RUN_ID}/rank.py"
    assert "-host node1 -n 2 -env HOME /home/ubuntu -env USER ubuntu " in node1
    assert f"/bin/python /home/ubuntu/{rank} recipe/" in node1
    assert node2.startswith("-host node2 -n 1 -env HOME /home/ann -env USER ann -env LOGNAME ann ")
    assert f"/bin/python /home/ann/{rank} recipe/" in node2
    assert "hostfile" not in made.files


def test_what_mpirun_starts_on_a_node_is_born_with_the_runs_id(tmp_path: Path) -> None:
    """Its proxies else know nothing of it, and one that is left could not be found."""
    (tmp_path / "ssh").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (tmp_path / "ssh").chmod(0o755)
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(planned(2, TWO_CORES, TWO_CORES).files["ssh.sh"])
    argv = ("sh", wrapper, "-q", "-x", "node2", "/stack/proxy", "--launcher", "a b")
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    said = subprocess.run(argv, env=path, capture_output=True, text=True, check=True).stdout
    begin = "<-q><-x><-o><BatchMode=yes>"
    end = f"<node2><env><CLUSTERCTL_RUN_ID={RUN_ID}></stack/proxy><--launcher><a b>"
    assert (said[: len(begin)], said[-len(end) :]) == (begin, end)


def test_ranks_are_numbered_node_by_node() -> None:
    made = planned(2, TWO_SOCKETS, TWO_SOCKETS)
    assert [(place.rank, place.node, place.local_rank, place.cpus) for place in made.ranks] == [
        (0, "node1", 0, (0, 1)),
        (1, "node1", 1, (2, 3)),
        (2, "node2", 0, (0, 1)),
        (3, "node2", 1, (2, 3)),
    ]


def test_what_differs_between_nodes_is_in_plan_json() -> None:
    about = json.loads(planned(2, TWO_SOCKETS, TWO_CORES).files["plan.json"])
    assert about["nodes"]["node2"]["environment"] == {"GLOO_SOCKET_IFNAME": "eth2"}
    assert about["ranks"][1] == {"rank": 1, "node": "node1", "local_rank": 1, "cpus": "2-3", "threads": 2}


def test_the_rendezvous_is_at_the_heads_mesh_address() -> None:
    argv = planned(2, TWO_CORES, TWO_CORES).argv
    at = argv.index("MASTER_ADDR")
    assert argv[at - 1 : at + 2] == ("-genv", "MASTER_ADDR", "10.0.0.1")


def test_a_plan_without_the_head_is_refused() -> None:
    known = {"node2": facts(TWO_CORES, TWO_CORES)["node2"]}
    with pytest.raises(SettingsError, match="the head node1 must take part"):
        plan(Ground(job(), cluster(2), layouts(known), known, STACK, 1))


def test_the_rendered_command_is_the_argv() -> None:
    made = planned(2, TWO_CORES, TWO_CORES)
    line = next(line for line in made.render().splitlines() if "bin/mpirun" in line)
    assert tuple(shlex.split(line)) == made.argv


def test_run_ids_sort_by_time() -> None:
    early = new_run_id("run_qa", datetime(2026, 11, 21, 10, 15, tzinfo=timezone.utc))
    late = new_run_id("run_qa", datetime(2026, 11, 21, 10, 16, tzinfo=timezone.utc))
    assert early.startswith("20261121-101500-run_qa-")
    assert early < late
    assert len(early) == len(RUN_ID)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="no recipe 'run_aq'; did you mean run_qa"):
        recipe_program("run_aq")


def test_an_unknown_recipe_without_a_near_one_lists_all() -> None:
    with pytest.raises(SettingsError, match="there is run_pretraining, run_qa"):
        recipe_program("x")


def test_data_files_are_uploaded_and_their_arguments_rewritten(tmp_path: Path) -> None:
    train, dev = tmp_path / "a" / "squad.json", tmp_path / "squad.json"
    train.parent.mkdir()
    train.touch()
    dev.touch()
    args = ["--train_file", str(train), f"--validation_file={dev}", "--bf16"]
    made = make_job(recipe_program("run_qa"), args)
    assert made.script_args == (
        *("--train_file", "data/train_file/squad.json"),
        *("--validation_file", "data/validation_file/squad.json"),
        *("--bf16", "--output_dir", "output"),
    )
    assert made.uploads == {
        "data/train_file/squad.json": train,
        "data/validation_file/squad.json": dev,
    }


def test_a_missing_data_file_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"--train_file /no/such.json: no such file on this machine"):
        make_job(recipe_program("run_qa"), ["--train_file", "/no/such.json"])


def test_the_output_folder_is_always_the_run_folders() -> None:
    args = ["--output_dir", "/tmp/x", "--seed=7", "--flag", "--lr", "-1"]
    made = with_script_args(TrainJob(recipe_program("run_qa"), RUN_ID), args)
    assert made.script_args == ("--seed", "7", "--flag", "--lr", "-1", "--output_dir", "output")


def test_shell_line_leaves_the_home_folder_to_the_shell() -> None:
    assert shell_line(("a", "~/b c", "$d")) == "a ~/'b c' '$d'"
