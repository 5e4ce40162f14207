"""Backends: chosen by the operator, imported by the ranks; nothing falls back silently."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from provision.errors import SettingsError
from run import rank as rank_program
from run.backend import (
    CCL_PACKAGE,
    Backend,
    ccl_environment,
    find_backend,
    module_from_anywhere,
    uses_ccl,
    with_backend,
    with_ccl_workers,
)
from run.launchers import mpirun, torchrun
from run.launchers.common import Ground
from run.layout import LayoutSettings, RankLayout, lay_out, worker_cores
from tests.run_cases import STACK, TWO_CORES, TWO_SOCKETS, cluster, facts, job, layouts
from tests.test_layout import topology

PLUGIN = Path(__file__).with_name("backend_plugin.py")
CHECKS = Path(__file__).with_name("backend_checks.py")
RECIPES = Path(rank_program.__file__).parent / "recipes"
ONECCL = PLUGIN.read_text().replace('"demo"', '"ccl"')

# --- what is asked for -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module", "args", "found"),
    [
        (None, None, (), Backend()),
        ("gloo", None, (), Backend("gloo")),
        ("auto", None, ("--seed", "1"), Backend("auto")),
        (None, None, ("--ddp_backend", "ccl"), Backend("ccl")),
        (None, None, ("--xpu_backend=ccl",), Backend("ccl")),
        ("ccl", None, ("--ddp_backend", "ccl"), Backend("ccl")),
        (None, None, ("--ddp_backend", "hccl"), Backend()),
        ("accl", "torch_accl", (), Backend("accl", "torch_accl")),
    ],
)
def test_the_backend_is_an_option_or_the_programs_argument(name, module, args, found):
    assert find_backend(name, module, args) == found


@pytest.mark.parametrize(
    ("name", "module", "args", "said"),
    [
        ("accl", None, (), "no backend 'accl': there is gloo, ccl, auto; one that a module registers needs"),
        (None, "torch_accl", (), "--backend-module torch_accl: which backend does it register"),
        ("gloo", None, ("--ddp_backend", "ccl"), "--backend gloo and --ddp_backend ccl: say one"),
        ("accl", "/nowhere/accl.py", (), "--backend-module /nowhere/accl.py: no such file on this machine"),
    ],
)
def test_what_cannot_be_meant_is_refused(name, module, args, said):
    with pytest.raises(SettingsError, match=said):
        find_backend(name, module, args)


def test_a_module_of_this_machine_travels_with_the_run(tmp_path):
    backend = find_backend("demo", str(PLUGIN))
    assert backend.environment == {"CLUSTERCTL_BACKEND": "demo", "CLUSTERCTL_BACKEND_MODULE": PLUGIN.stem}
    made = with_backend(job({"data/x": tmp_path}), backend)
    assert made.uploads == {"data/x": tmp_path, "lib/backend_plugin.py": PLUGIN}
    (tmp_path / "my-backend.py").touch()
    with pytest.raises(SettingsError, match="'my-backend' is no module's name"):
        find_backend("demo", str(tmp_path / "my-backend.py"))


def test_a_module_is_remembered_by_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert module_from_anywhere("mine.py") == str(tmp_path / "mine.py")
    assert module_from_anywhere("torch_accl") == "torch_accl"
    assert module_from_anywhere(None) is None


@pytest.mark.parametrize(
    ("backend", "packages", "used"),
    [
        (Backend("ccl"), {CCL_PACKAGE: "2.8.0"}, True),
        (Backend("auto"), {CCL_PACKAGE: "2.8.0"}, True),
        (Backend("auto"), {}, False),
        (Backend("ccl", "mine"), {}, False),
        (Backend("gloo"), {CCL_PACKAGE: "2.8.0"}, False),
        (Backend(), {CCL_PACKAGE: "2.8.0"}, False),
    ],
)
def test_oneccl_is_used_where_it_is_wanted_and_there(backend, packages, used):
    assert uses_ccl(backend, packages, "intel") is used


def test_ccl_is_refused_where_the_stack_has_none():
    with pytest.raises(SettingsError, match="backend ccl: stack native has no oneccl-bind-pt; take stack"):
        uses_ccl(Backend("ccl"), {"torch": "2.13.0"}, "native")


# --- cores for its workers ---------------------------------------------------------------------


def test_a_worker_gets_a_core_that_is_held_out_of_the_ranks_cores():
    before = lay_out("spr", topology(56, 56, threads_per_core=2), LayoutSettings())
    after, workers = worker_cores(before)
    assert workers == (55, 111)
    assert [(rank.cpus[0], rank.cpus[-1], rank.threads, rank.comm_cores) for rank in after.ranks] == [
        (0, 54, 55, 0),
        (56, 110, 55, 0),
    ]


def test_a_rank_that_computes_on_all_its_cores_shares_the_last_with_the_worker():
    before = lay_out("small", topology(2, 2), LayoutSettings())
    after, workers = worker_cores(before)
    assert after == before
    assert workers == (1, 3)


def test_fewer_threads_than_cores_leave_one_for_the_worker():
    before = lay_out("small", topology(4), LayoutSettings(threads=3))
    after, workers = worker_cores(before)
    assert after.ranks == (RankLayout(0, (0, 1, 2), (0,), 3),)
    assert workers == (3,)


@pytest.mark.parametrize("launcher", [mpirun, torchrun])
def test_every_nodes_ranks_are_told_of_their_workers_and_interface(launcher):
    known = facts(TWO_SOCKETS, TWO_CORES)
    wanted = with_backend(job(), Backend("ccl"))
    wanted, made = with_ccl_workers(wanted, layouts(known), known)
    planned = launcher.plan(Ground(wanted, cluster(2), made, known, STACK, 29501))
    about = json.loads(planned.files["plan.json"])
    interface = known["node1"].interface
    assert about["nodes"]["node1"]["environment"] == {
        "GLOO_SOCKET_IFNAME": interface,
        **ccl_environment((1, 3), interface),
    }
    assert about["nodes"]["node2"]["environment"]["CCL_WORKER_AFFINITY"] == "1"
    assert "CLUSTERCTL_BACKEND" in (*planned.argv, *planned.environment)


# --- what setvars.sh says ----------------------------------------------------------------------


@pytest.mark.parametrize("package", ["oneccl_bindings_for_pytorch", "torch_ccl"])
def test_ranks_begin_with_what_setvars_exports(tmp_path, monkeypatch, package):
    script = tmp_path / "lib/python3.11/site-packages" / package / "env" / "setvars.sh"
    script.parent.mkdir(parents=True)
    script.write_text(
        'export LD_LIBRARY_PATH="/ccl/lib:$LD_LIBRARY_PATH" CCL_ROOT="a\nb"; echo noise; false\n'
    )
    monkeypatch.setattr(rank_program.sys, "prefix", str(tmp_path))
    before = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": "/mine",
        "RANK": "3",
        "CLUSTERCTL_BACKEND": "ccl",
    }

    after = rank_program.with_setvars(before)
    assert after == {**before, "LD_LIBRARY_PATH": "/ccl/lib:/mine", "CCL_ROOT": "a\nb"}
    assert rank_program.with_setvars({**before, "CLUSTERCTL_BACKEND": "gloo"})["LD_LIBRARY_PATH"] == "/mine"


# --- ranks -------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_ranks(stack, backend, paths, **environment):
    """Two ranks, each with a folder of modules of its own; the events and the words of each."""
    port = str(free_port())
    started = [
        subprocess.Popen(
            [stack / "bin" / "python", CHECKS, backend],
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            | {"PYTHONPATH": f"{RECIPES}:{path}", "TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
            | {"GLOO_SOCKET_IFNAME": "lo", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, path in enumerate(paths)
    ]
    return [(*process.communicate(timeout=60), process.returncode) for process in started]


def said(rank):
    """The backend that the rank ran over, once its group has proved to work."""
    out, err, code = rank
    assert code == 0, out + err
    found = json.loads(out.splitlines()[-1])
    assert (found["ranks"], found["sum"]) == ([0, 1], 3.0)
    return found["backend"]


@pytest.fixture
def with_oneccl(tmp_path):
    """A folder with a stand-in for Intel's bindings: registers "ccl", over gloo."""
    folder = tmp_path / "with"
    folder.mkdir()
    (folder / "oneccl_bindings_for_pytorch.py").write_text(ONECCL)
    return folder


@pytest.mark.stack
def test_auto_is_ccl_where_all_ranks_have_it(stack, with_oneccl):
    assert [said(rank) for rank in run_ranks(stack, "auto", (with_oneccl, with_oneccl))] == ["ccl", "ccl"]


@pytest.mark.stack
def test_auto_is_gloo_where_one_rank_has_no_oneccl_and_that_is_said(stack, with_oneccl, tmp_path):
    ranks = run_ranks(stack, "auto", (with_oneccl, tmp_path))
    assert [said(rank) for rank in ranks] == ["gloo", "gloo"]
    assert "backend auto: gloo, since rank 1 has no oneCCL" in ranks[0][0]


@pytest.mark.stack
def test_the_launchers_backend_wins_over_the_recipes_own(stack, with_oneccl):
    asked = {"CLUSTERCTL_BACKEND": "demo", "CLUSTERCTL_BACKEND_MODULE": PLUGIN.stem}
    paths = (PLUGIN.parent, PLUGIN.parent)
    assert [said(rank) for rank in run_ranks(stack, "gloo", paths, **asked)] == ["demo", "demo"]


@pytest.mark.stack
def test_a_backend_that_is_not_to_be_had_is_one_line(stack, tmp_path):
    (tmp_path / "broken.py").write_text('raise OSError("libaccl.so: cannot open\\nmore of it")\n')
    asked = [("accl", "broken"), ("accl", "nowhere"), ("accl", "json"), ("ccl", None), ("gloo", None)]
    ended = subprocess.run(
        [stack / "bin" / "python", CHECKS, "refusals", json.dumps(asked)],
        env=os.environ | {"PYTHONPATH": f"{RECIPES}:{tmp_path}"},
        capture_output=True,
        text=True,
    )
    needed = "; every node needs it: install it there, or give the path of its file here"
    assert ended.stdout.splitlines() == [
        "backend accl: module broken cannot be imported (OSError: libaccl.so: cannot open)" + needed,
        "backend accl: module nowhere cannot be imported (ModuleNotFoundError: No module named 'nowhere')"
        + needed,
        "backend accl: json registers none of that name; give the one that it does",
        "backend ccl: no oneccl_bindings_for_pytorch here; take backend gloo or auto, or the intel stack "
        "(torch 2.8) with oneccl_bind_pt from Intel's wheel index",
        "imported",
    ]
