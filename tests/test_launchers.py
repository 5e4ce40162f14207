"""Anyone's program on real nodes, under each launcher; and what torchrun can that mpirun cannot."""

from __future__ import annotations

import json
import re
import signal

import pytest

from tests.local_nodes import eventually, needs_nodes
from tests.test_train import ended, left_over, run_folder, wait_for_progress

pytestmark = [*needs_nodes, pytest.mark.stack]

ROLL_CALL = """
import os, pathlib, sys
import beside
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
print(beside.WORD, *(os.environ[name] for name in names), sys.argv[1:], *sorted(os.sched_getaffinity(0)))
assert os.environ["MASTER_ADDR"] and os.environ["MASTER_PORT"]
pathlib.Path("made").mkdir(exist_ok=True)
pathlib.Path("made/by-" + os.environ["RANK"]).write_text("x")
"""
# Ends as run/watch.py advises: of itself every twentieth of such ranks aborts while Python ends.
DDP = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(20):
    inputs = torch.randn(16, 8, generator=generator)
    loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = loss.detach()
dist.all_reduce(total)
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
    print(f"loss {total.item():.6f}")
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def script(cluster):
    folder = cluster.home / "project"
    folder.mkdir(exist_ok=True)
    (folder / "beside.py").write_text("WORD = 'hello'\n")

    def write(text: str, name: str = "train.py") -> str:
        (folder / name).write_text(text)
        return str(folder / name)

    return write


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_script_sees_the_same_whoever_starts_it_and_what_it_made_comes_back(cluster, script, launcher):
    """Its arguments are its own, though torchrun would take --log for one of its."""
    path = script(ROLL_CALL)
    out = cluster.ok("train", path, "--launcher", launcher, "--ppn", "2", "--", "--log", "a b")

    told = re.findall(r"^\[(\d)\] hello (\d) (\d) 6 2 1 eth0 \['--log', 'a b'\] (.+)$", out, re.M)
    assert sorted((prefix, rank) for prefix, rank, _, _ in told) == [(str(n), str(n)) for n in range(6)]
    # One thread each, and no CPU for two ranks of a node: what the ranks see, not what was planned.
    masks = {local: {cpus for _, _, its, cpus in told if its == local} for local in "01"}
    assert all(len(seen) == 1 for seen in masks.values())
    first, second = ({*next(iter(seen)).split()} for seen in masks.values())
    assert first
    assert first.isdisjoint(second)
    output = run_folder(cluster) / "output"
    made = [str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()]
    assert len(made) == 2  # the head's two ranks; nothing that came from here
    assert all(name.startswith("made/by-") for name in made)
    assert "rank.py" not in left_over(cluster)


def test_a_plain_ddp_script_trains_alike_under_both(cluster, script):
    path = script(DDP, "ddp.py")
    losses = []
    for launcher in ("mpirun", "torchrun"):
        out = cluster.ok("train", path, "--launcher", launcher, "--nodes", "2")
        losses += re.findall(r"^\[0\] loss (\S+)$", out, re.M)
        assert (run_folder(cluster) / "output" / "model.pt").exists()
    assert len(losses) == 2
    assert losses[0] == losses[1]


def test_a_bash_line_and_a_module(cluster, script):
    script(ROLL_CALL)
    line = "echo $RANK of $WORLD_SIZE; python -c 'import torch'; exit $((RANK * 4))"
    failed = cluster("train", line, "--bash", "--nodes", "2")
    assert failed.code == 1
    assert "[1] 1 of 2" in failed.out
    assert failed.error_line.startswith(
        "clusterctl: rank 1 on node2 ended with exit code 4: 1 of 2; logs are in"
    )

    out = cluster.ok("train", "this", "--module", "--nodes", "1")
    assert "The Zen of Python, by Tim Peters" in out


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("import nothing_of_this_name", (), "ended with exit code 1: ModuleNotFoundError: No module named"),
        ("import time; time.sleep(600)", ("--idle-timeout", "6"), "no rank has printed or computed anything"),
    ],
)
def test_a_script_that_goes_wrong_is_told_in_a_line(cluster, script, text, options, said):
    failed = cluster("train", script(text, "wrong.py"), "--nodes", "2", *options)
    assert (failed.code, said in failed.error_line) == (1, True), failed.err
    assert "rank.py" not in left_over(cluster)


WAITS = "import time; print('here', flush=True); time.sleep(600)"
MAKES_MUCH = """
import os
with open("much", "wb") as file:
    for _ in range(400 if os.environ["RANK"] == "0" else 0): file.write(os.urandom(1 << 20))
"""
PHASES = {
    "start": (WAITS, (), "COMM CORES"),  # the last that is shown before
    "run": (WAITS, ("--json",), '"start"'),
    "results": (MAKES_MUCH, ("--json",), '"launcher_exit"'),
}


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_ends_a_run_whenever_it_comes_and_leaves_nothing_running(cluster, script, launcher, phase):
    text, options, seen = PHASES[phase]
    path = script(text, "interrupted.py")
    process = cluster.start("train", path, "--launcher", launcher, "--nodes", "2", *options)
    while seen not in (line := process.stdout.readline()):
        assert line, process.stderr.read()
    process.send_signal(signal.SIGINT)
    code, out, err, seconds = ended(process)

    assert (code, err) == (130, "")
    assert seconds < 15
    folder = run_folder(cluster)
    assert f"stopped; logs: runs/{folder.name}" in out or '"problem": "stopped"' in out
    assert (folder / "logs").is_dir()
    running = "pgrep -fa 'rank.p[y]|mpiru[n]|hydr[a]|agents.p[y]|head.p[y]|torch.distribute[d]' || true"
    for node in ("node1", "node2"):
        assert cluster.on(node, running) == ""
        left = cluster.on(node, f"cd ~/.clusterctl/runs/{folder.name} && find -size +1M || true")
        assert bool(left) == (phase == "results" and node == "node1"), "what was not fetched stays"
    cluster.on("node1", f"rm -rf ~/.clusterctl/runs/{folder.name}")


def test_when_the_operator_vanishes_no_agent_stays(cluster, script):
    """Their ssh sessions are no part of the group that is killed then."""
    path = script(WAITS, "waits.py")
    process = cluster.start("train", path, "--launcher", "torchrun", "--nodes", "2", "--json")
    while '"start"' not in process.stdout.readline():
        assert process.poll() is None
    process.kill()
    process.communicate()

    running = "pgrep -fa 'rank.p[y]|agents.p[y]|head.p[y]|torch.distribute[d]' || true"
    assert eventually(lambda: not any(cluster.on(node, running) for node in ("node1", "node2")), 30)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("nothing.py",), "nothing.py: no such file; it is looked for in"),
        (("run_qa", "--launcher", "slurm"), "no launcher 'slurm'; there is mpirun, torchrun"),
        (("run_qa", "--launcher", "torchrun", "--nodes", "3:2"), "the smaller number comes first"),
        (("run_qa", "--nodes", "9"), "has 3 nodes; `clusterctl up` adds more"),
        (("run_qa", "--ppn", "99"), "99 ranks"),
        (("run_qa", "--set", "image=a:1"), "--set image=a:1: mpirun has no settings"),
        (("run_qa", "--launcher", "torchrun", "--settings", "a.yml"), "--settings a.yml: torchrun has no"),
        (("run_qa", "--keep"), "--keep: an option of --launcher kubernetes"),
    ],
)
def test_what_cannot_be_started_is_told_before_anything_is(cluster, args, said):
    refused = cluster("train", *args)
    assert (refused.code, said in refused.error_line) == (2, True), refused.err


def losses(cluster):
    history = json.loads((run_folder(cluster) / "output" / "log_history.json").read_text())
    return [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]


STEPS = (
    *("--max_steps", "6", "--logging_steps", "1", "--bf16", "false", "--do_eval", "false"),
    *("--save_strategy", "steps", "--save_steps", "2"),
)


@pytest.mark.slow
def test_the_recipe_trains_alike_under_both_and_goes_on_after_a_rank_was_killed(cluster):
    cluster.ok("train", "run_qa", "--nodes", "2", "--", *STEPS)
    whole = losses(cluster)

    options = ("--launcher", "torchrun", "--restarts", "1", "--nodes", "2", "--json")
    process = cluster.start("train", "run_qa", *options, "--", *STEPS)
    wait_for_checkpoint(process)
    cluster.on("node2", "pkill -KILL -f 'bin/python [r]ecipe/question'")
    code, out, err, _ = ended(process, 120)

    assert code == 0, err
    assert [json.loads(line)["step"] for line in out.splitlines() if '"checkpoint"' in line][-1] == 6
    again = losses(cluster)
    assert [step for step, _ in again] == [1, 2, 3, 4, 5, 6]
    assert [loss for _, loss in again] == pytest.approx([loss for _, loss in whole], rel=1e-4)


def wait_for_checkpoint(process) -> None:
    for line in process.stdout:
        if json.loads(line).get("event") == "checkpoint":
            return
    raise AssertionError(process.stderr.read())


def cut_off(cluster, node: str, seconds: int = 60) -> None:
    cluster.on(
        node,
        f"(sleep 0.5; sudo ip link set eth0 down; sleep {seconds}; sudo ip link set eth0 up) "
        ">/dev/null 2>&1 &",
    )


@pytest.mark.slow
def test_a_node_that_is_cut_off_is_named_under_torchrun_too(cluster):
    options = ("--launcher", "torchrun", "--json")
    process = cluster.start(
        "train", "run_qa", *options, "--", "--num_train_epochs", "200", "--do_eval", "false"
    )
    wait_for_progress(process)
    cut_off(cluster, "node3", 45)
    code, _, err, seconds = ended(process, 120)

    assert (code, "node3" in err, seconds < 60) == (1, True, True), err
    assert eventually(lambda: cluster("status").code == 0, 90)
    assert eventually(lambda: "rank.py" not in left_over(cluster), 60)


@pytest.mark.slow
def test_a_run_with_enough_nodes_left_goes_on_without_one(cluster, script):
    path = script(
        DDP.replace("range(20)", "range(3000)").replace(
            "    loss.backward()", "    loss.backward(); import time; time.sleep(0.01)"
        ),
        "long.py",
    )
    process = cluster.start(
        "train", path, "--launcher", "torchrun", "--nodes", "2:3", "--restarts", "2", "--json"
    )
    for line in process.stdout:
        if '"start"' in line:
            break
    cut_off(cluster, "node3", 90)
    code, out, err, _ = ended(process, 240)

    assert code == 0, err
    assert '"world_size": 2' in out
    assert eventually(lambda: cluster("status").code == 0, 120)


@pytest.mark.slow
def test_fewer_nodes_go_on_from_the_checkpoint_with_the_batches_of_all(cluster):
    steps = (*STEPS, "--max_steps", "40", "--dropout", "0")
    cluster.ok("train", "run_qa", "--", *steps)
    whole = losses(cluster)

    options = ("--launcher", "torchrun", "--nodes", "2:3", "--restarts", "2", "--json")
    process = cluster.start("train", "run_qa", *options, "--", *steps)
    wait_for_checkpoint(process)
    cut_off(cluster, "node3", 90)
    code, out, err, _ = ended(process, 300)

    assert code == 0, err
    assert "a step keeps its 15 rows on 2 ranks: 4 rows a rank in each of 2 micro-batches" in out
    again = losses(cluster)
    assert [step for step, _ in again] == [step for step, _ in whole] == list(range(1, 41))
    assert [loss for _, loss in again] == pytest.approx([loss for _, loss in whole], rel=1e-3)
    assert eventually(lambda: cluster("status").code == 0, 120)
