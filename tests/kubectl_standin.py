"""A stand-in for kubectl and for Kubeflow's two operators, for tests: no cluster is anywhere near.

Started as `kubectl` it answers from the folder KUBECTL_STANDIN. What is created there is kept as JSON; a
job's pods really run, as processes of this machine at 127.0.0.1, with the variables that the operators give.
What is not so: a pod is a folder instead of a container (its /workspace and /clusterctl/files are moved
there), `torchrun` is the module of KUBECTL_STANDIN_PYTHON (without it one rank a pod is started, with no
torchrun at all), a library to preload that this machine lacks is left out, nothing is scheduled, limited or
pulled. The file `fault` in the folder names what goes wrong; refusals are in the words of kubectl 1.32 and of
the API server.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIFETIME_S = 120.0
STATE = Path(os.environ.get("KUBECTL_STANDIN", "/nonexistent"))
RANK_PY = Path(__file__).parents[1] / "run" / "rank.py"
SELECTORS = {"training.kubeflow.org/job-name": "pytorchjob", "jobset.sigs.k8s.io/jobset-name": "trainjob"}
_FORBIDDEN = 'Error from server (Forbidden): error when creating "STDIN": '
REFUSALS = {
    "forbidden": f'{_FORBIDDEN}pytorchjobs.kubeflow.org is forbidden: User "jo" cannot create resource '
    '"pytorchjobs" in API group "kubeflow.org" in the namespace "prod"',
    "no-crd": 'error: resource mapping not found for name: "x" namespace: "" from "STDIN": no matches for '
    'kind "PyTorchJob" in version "kubeflow.org/v1"\nensure CRDs are installed first',
    "no-context": "error: current-context is not set",
    "no-namespace": 'Error from server (NotFound): error when creating "STDIN": namespaces "prod" not found',
    "unreachable": "Unable to connect to the server: dial tcp 192.0.2.1:6443: i/o timeout",
    "unauthorized": "error: You must be logged in to the server (Unauthorized)",
    "denied": f'{_FORBIDDEN}admission webhook "validator.pytorchjob.training-operator.kubeflow.org" denied '
    "the request: spec.pytorchReplicaSpecs: Required value",
}
WAITING = {
    "image": ("ImagePullBackOff", 'Back-off pulling image "registry.example.com/clusterctl:1"'),
    "secret": ("CreateContainerConfigError", 'secret "hub" not found'),
}
NO_NODE = "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available."


def main(argv: list[str]) -> int:
    words = [word for word in argv if not word.startswith("--request-timeout")]
    while words[:1] in (["--context"], ["--namespace"]):
        words = words[2:]
    verb, rest = words[0], words[1:]
    if verb == "version":
        print("a stand-in for kubectl, for clusterctl's tests")
        return 0
    return {"create": create, "get": get, "logs": logs, "delete": delete}[verb](rest)


def fault() -> str:
    path = STATE / "fault"
    return path.read_text().strip() if path.exists() else ""


def refuse(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


# --- the verbs ---------------------------------------------------------------------------------


def create(_rest: list[str]) -> int:
    import yaml

    if fault() in REFUSALS:
        return refuse(REFUSALS[fault()])
    for manifest in yaml.safe_load_all(sys.stdin):
        kind, name = manifest["kind"].lower(), manifest["metadata"]["name"]
        path = STATE / f"{kind}-{name}.json"
        if path.exists():
            return refuse(f'Error from server (AlreadyExists): {kind}s.kubeflow.org "{name}" already exists')
        path.write_text(json.dumps(manifest))
        group = manifest["apiVersion"].partition("/")
        print(f"{kind}.{group[0]}/{name}" if group[2] else f"{kind}/{name}", flush=True)
        if kind != "configmap":
            start_operator(path)
    return 0


def get(rest: list[str]) -> int:
    if rest[0] == "pods":
        label, _, name = rest[rest.index("-l") + 1].partition("=")
        pods = sorted((STATE / f"{SELECTORS[label]}-{name}").glob("*.json"))
        print(json.dumps({"items": [read(path) for path in pods if path.exists()]}))
        return 0
    if rest[0] == "events":
        why = "pods is forbidden: violates PodSecurity: hostNetwork=true"
        items = [{"reason": "FailedCreatePod", "message": why}] if fault() == "no-pods" else []
        print(json.dumps({"items": items}))
        return 0
    kind, _, name = rest[0].partition("/")
    path = STATE / f"{kind.partition('.')[0]}-{name}.json"
    if not path.exists():
        return refuse(f'Error from server (NotFound): {kind}s.kubeflow.org "{name}" not found')
    print(json.dumps(read(path)))
    return 0


def logs(rest: list[str]) -> int:
    pod = next(word for word in rest if not word.startswith("--"))
    since = next((word.partition("=")[2] for word in rest if word.startswith("--since-time=")), "")
    path = next(iter(STATE.glob(f"*/{pod}.json")), None)
    if path is None:
        return refuse(f'Error from server (NotFound): pods "{pod}" not found')
    with path.with_suffix(".log").open() as log:
        while True:
            has_ended = not path.exists() or "running" not in json.dumps(read(path)["status"])
            for line in log:
                if line[:19] >= since[:19]:
                    print(line, end="", flush=True)
            if has_ended:
                return 0
            time.sleep(0.05)


def delete(rest: list[str]) -> int:
    if fault() == "no-delete":
        return refuse(REFUSALS["unreachable"])
    for word in rest:
        if word.startswith("-"):
            continue
        kind, _, name = word.partition("/")
        path = STATE / f"{kind.partition('.')[0]}-{name}.json"
        path.unlink(missing_ok=True)
        folder = path.with_suffix("")
        while folder.exists():  # the operator sees that its job is gone
            time.sleep(0.05)
        print(f'{kind} "{name}" deleted')
    return 0


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def write(path: Path, content: Any) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(content))
    aside.replace(path)


# --- the operators -----------------------------------------------------------------------------


def start_operator(job: Path) -> None:
    job.with_suffix("").mkdir()
    command = [sys.executable, __file__, "--operator", str(job)]
    with (STATE / "operator.log").open("a") as log:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


class Pod:
    """One pod: its JSON and its log beside each other, its process."""

    def __init__(self, folder: Path, name: str, container: dict[str, Any], variables: dict[str, str]) -> None:
        self.path = folder / f"{name}.json"
        self.name, self.container, self.variables = name, container, variables
        self.process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.restarts = 0

    def start(self) -> None:
        log = self.path.with_suffix(".log").open("a")
        room = self.path.with_suffix("")
        argv = [word.replace("/workspace", str(room)).replace("/clusterctl/files", str(room / "files.d"))
                for word in self.container["command"]]  # fmt: skip
        argv = [word.replace("$$(", "$(") for word in argv]
        python = os.environ.get("KUBECTL_STANDIN_PYTHON")
        torchrun = [python, "-m", "torch.distributed.run"] if python else [sys.executable, __file__, "--rank"]
        argv = [part for word in argv for part in (torchrun if word == "torchrun" else [word])]
        self.process = subprocess.Popen(
            argv, env=self.variables, cwd=room, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        stamp = "import sys, datetime as d\nfor line in sys.stdin.buffer:\n"
        stamp += " now = d.datetime.now(d.timezone.utc).isoformat().replace('+00:00', '000Z')\n"
        stamp += " sys.stdout.buffer.write(now.encode() + b' ' + line); sys.stdout.flush()\n"
        self.stamper = subprocess.Popen([sys.executable, "-c", stamp], stdin=self.process.stdout, stdout=log)

    def look(self, may_restart: bool) -> None:
        if self.process is not None and self.code is None:
            code = self.process.poll()
            if code is not None:
                self.stamper.wait(timeout=5)
                if code and may_restart:
                    self.restarts += 1
                    self.start()
                else:
                    self.code = code
        write(self.path, self.as_json())

    def end(self) -> None:
        if self.process is not None:
            for number, wait_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
                if self.process.poll() is None:
                    os.killpg(self.process.pid, number)
                    try:
                        self.process.wait(wait_s)
                    except subprocess.TimeoutExpired:
                        continue

    def as_json(self) -> dict[str, Any]:
        why = fault()
        status: dict[str, Any] = {"phase": "Pending"}
        if why == "unschedulable":
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": NO_NODE,
            }
            status["conditions"] = [condition]
        elif why in WAITING:
            reason, message = WAITING[why]
            waiting = {"waiting": {"reason": reason, "message": message}}
            status["containerStatuses"] = [{"state": waiting, "restartCount": 0}]
        elif self.code is None:
            status = {"phase": "Running", "podIP": "127.0.0.1"}
            status["containerStatuses"] = [{"state": {"running": {}}, "restartCount": self.restarts}]
        else:
            phase, reason = ("Failed", "Error") if self.code else ("Succeeded", "Completed")
            if self.code == -9:
                reason = "OOMKilled"
            state = {"terminated": {"exitCode": self.code, "reason": reason}}
            status = {"phase": phase, "containerStatuses": [{"state": state, "restartCount": self.restarts}]}
        return {"metadata": {"name": self.name}, "spec": {"nodeName": "standin"}, "status": status}


def operate(job: Path) -> None:
    manifest, folder = read(job), job.with_suffix("")
    pods = [] if fault() == "no-pods" else make_pods(manifest, folder)
    restarts = manifest["spec"].get("runPolicy", {}).get("backoffLimit", 0)
    if fault() not in ("unschedulable", *WAITING):
        for pod in pods:
            pod.start()
    deadline = time.monotonic() + LIFETIME_S
    while job.exists() and time.monotonic() < deadline:
        for pod in pods:
            pod.look(pod.restarts < restarts)
        condition = condition_of(manifest["kind"], pods)
        if job.exists():
            manifest["status"] = {"conditions": [{"type": condition, "status": "True"}]}
            write(job, manifest)
        time.sleep(0.1)
    for pod in pods:
        pod.end()
    job.unlink(missing_ok=True)
    while folder.exists():  # what is killed may still write
        shutil.rmtree(folder, ignore_errors=True)


def condition_of(kind: str, pods: list[Pod]) -> str:
    """As the operators do: a PyTorchJob with an elastic policy has succeeded as soon as one worker has."""
    codes = [pod.code for pod in pods]
    if any(codes):
        return "Failed"
    if kind == "PyTorchJob":
        return "Succeeded" if 0 in codes else "Running"
    return "Complete" if codes and None not in codes else "Created"


def make_pods(manifest: dict[str, Any], folder: Path) -> list[Pod]:
    name, spec = manifest["metadata"]["name"], manifest["spec"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    if manifest["kind"] == "PyTorchJob":
        worker = spec["pytorchReplicaSpecs"]["Worker"]
        pod_spec, elastic = worker["template"]["spec"], spec["elasticPolicy"]
        container, count, label = pod_spec["containers"][0], worker["replicas"], "worker-%d"
        given = {
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}", "PET_RDZV_BACKEND": elastic["rdzvBackend"],
            "PET_RDZV_ID": elastic["rdzvId"], "PET_MAX_RESTARTS": str(elastic["maxRestarts"]),
            "PET_NNODES": f"{elastic['minReplicas']}:{elastic['maxReplicas']}",
        }  # fmt: skip
    else:
        patch = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
        pod_spec, container, label = (
            patch["template"]["spec"]["template"]["spec"],
            spec["trainer"],
            "node-0-%d-x7k2p",
        )
        count = container["numNodes"]
        given = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port, "PET_NNODES": str(count)}
    pods = []
    for number in range(count):
        pod_name = f"{name}-{label % number}"
        rank = {"PET_NODE_RANK": str(number)} if manifest["kind"] != "PyTorchJob" else {}
        rank |= {"STANDIN_RANK": str(number), "STANDIN_SIZE": str(count)}
        lay_files(folder / pod_name, pod_spec, folder.parent)
        pods.append(Pod(folder, pod_name, container, variables(container, {**given, **rank})))
    return pods


def begin_rank(argv: list[str]) -> None:
    """What torchrun would start, without it."""
    while argv[0].startswith("--"):
        argv = argv[1:]
    names = {"RANK": "STANDIN_RANK", "WORLD_SIZE": "STANDIN_SIZE"}
    os.environ.update({name: os.environ[given] for name, given in names.items()})
    os.execv(sys.executable, [sys.executable, *argv])


def variables(container: dict[str, Any], given: dict[str, str]) -> dict[str, str]:
    found = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
    for item in container["env"]:
        source = item.get("valueFrom", {})
        value = item.get("value", "127.0.0.1" if "fieldRef" in source else "from the stand-in's secret")
        found[item["name"]] = value.replace("$$(", "$(")
    present = [path for path in found.get("LD_PRELOAD", "").split(":") if Path(path).is_file()]
    return {**found, "LD_PRELOAD": ":".join(present), **given}


def lay_files(room: Path, pod_spec: dict[str, Any], state: Path) -> None:
    """What an image has in /workspace, and the ConfigMap's mount."""
    room.mkdir()
    shutil.copy(RANK_PY, room)
    (room / "nodes").mkdir()
    (room / "nodes" / socket.gethostname()).write_text(room.name)
    for volume in pod_spec["volumes"]:
        if "configMap" not in volume:
            continue
        kept = read(state / f"configmap-{volume['configMap']['name']}.json")
        for item in volume["configMap"]["items"]:
            path = room / "files.d" / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            text = kept.get("data", {}).get(item["key"])
            path.write_bytes(
                text.encode() if text is not None else base64.b64decode(kept["binaryData"][item["key"]])
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--operator"]:
        operate(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["--rank"]:
        begin_rank(sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
