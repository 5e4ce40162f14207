"""kubectl: what is asked of a cluster, each answer bounded in time, each refusal in one clear line."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence

from provision.errors import LaunchError, last_lines
from run.pods import JobState, Pod, parse_job, parse_pods, parse_warnings

REQUEST_S = 20.0
"""For one request; kubectl itself may make a few."""
CALL_S = 60.0

_REFUSALS: Sequence[tuple[str, str]] = (
    (
        r"no configuration has been provided|current-context is not set|localhost:8080 was refused"
        r"|connect: connection refused.*localhost:8080",
        "kubectl has no cluster to talk to; choose one of `kubectl config get-contexts` with --context, or "
        "set KUBECONFIG",
    ),
    (
        r'context "([^"]*)" does not exist|no context exists with the name: "([^"]*)"',
        "kubectl knows no context {0}; `kubectl config get-contexts` lists them",
    ),
    (
        r'namespaces "([^"]*)" not found',
        "namespace {0}: there is none in this cluster; kubectl create namespace {0}, or --set namespace=NAME",
    ),
    (
        r'User "([^"]*)" cannot (\w+) resource "([^"]*)".* in the namespace "([^"]*)"',
        "namespace {3}: {0} may not {1} {2} there; take one of yours, --set namespace=NAME, or ask for the "
        "right",
    ),
    (
        r'no matches for kind "(PyTorchJob)"|the server doesn.t have a resource type "(pytorchjobs?)',
        "this cluster knows no PyTorchJob: Kubeflow's training operator 1.9 is not installed; install it, or "
        "take --kind trainjob",
    ),
    (
        r'no matches for kind "(TrainJob)"|the server doesn.t have a resource type "(trainjobs?)',
        "this cluster knows no TrainJob: Kubeflow Trainer is not installed; install it, or take --kind "
        "pytorchjob",
    ),
    (
        r'trainingruntimes?[^"]*"([^"]*)" not found',
        "there is no ClusterTrainingRuntime {0}; `kubectl get clustertrainingruntimes` lists them; "
        "--set runtime=NAME",
    ),
    (
        r'strict decoding error: (unknown field "[^"]*")',
        "this cluster's operator is of another version than these manifests are for: {0}; TrainJob wants "
        "Kubeflow Trainer 2.2 or newer, PyTorchJob the training operator 1.7 or newer",
    ),
    (
        r"exceeded quota: ([^,]*), requested: ([^,]*), used: [^,]*, limited: (.*)",
        "quota {0} of the namespace: {1} asked for, {2} is all there is; lower --nodes, cpu or memory_gib",
    ),
    (
        r'(\S+) "([^"]*)" not found',
        "{0} {1} is gone; somebody deleted it",
    ),
    (
        r'"([^"]*)" already exists',
        "{0} is there already; choose another name, or `kubectl delete` it",
    ),
    (
        r'admission webhook "[^"]*" denied the request: (.*)',
        "the cluster's operator refused the job: {0}",
    ),
    (
        r"must be logged in to the server|\(Unauthorized\)|You must be logged in",
        "the cluster does not know you any more (Unauthorized); log in to it again",
    ),
    (
        r"Unable to connect to the server: (.*)|[Tt]he connection to the server (\S+) was refused",
        "the cluster does not answer ({0}); is its address right, and the way to it open?",
    ),
)


class Gone(LaunchError):
    """What was asked for is not there any more."""


class Kubectl:
    """One namespace of one cluster, None being kubectl's own choice.

    Every method raises LaunchError, with one line of what, where, and what next.
    """

    def __init__(self, namespace: str | None = None, context: str | None = None) -> None:
        program = shutil.which("kubectl")
        if program is None:
            raise LaunchError(
                "kubectl is not on this machine's PATH; install it (https://kubernetes.io/docs/tasks/tools), "
                "or print the manifests with --dry-run and apply them elsewhere"
            )
        self._base = [program, *(["--context", context] if context else [])]
        self._base += ["--namespace", namespace] if namespace else []
        self._namespace = namespace

    def create(self, manifests: str) -> tuple[str, ...]:
        """Create what the YAML says; "kind/name" of each thing made. Where one is refused, none stays."""
        done = self._run(["create", "-f", "-", "-o", "name"], manifests)
        made = tuple(line.strip() for line in done.stdout.splitlines() if "/" in line)
        if done.returncode:
            self.delete(made)
            raise LaunchError(explain(done.stderr))
        return made

    def job(self, name: str) -> JobState:
        """`name` as create() gave it."""
        return parse_job(self._ask("get", name, "-o", "json"))

    def pods(self, selector: str) -> tuple[Pod, ...]:
        return parse_pods(self._ask("get", "pods", "-l", selector, "-o", "json"))

    def warnings(self, name: str) -> tuple[str, ...]:
        """What the cluster warns of an object, by its bare name."""
        chosen = f"involvedObject.name={name},type=Warning"
        return parse_warnings(self._ask("get", "events", "--field-selector", chosen, "-o", "json"))

    def delete(self, names: Sequence[str], wait_s: float = 30) -> str:
        """Delete these, absent ones included, and wait until they are gone: "" then, else what went wrong."""
        if not names:
            return ""
        wanted = ["delete", *names, "--ignore-not-found", "--wait", f"--timeout={wait_s:.0f}s"]
        done = self._run(wanted, limit_s=wait_s + CALL_S)
        return explain(done.stderr) if done.returncode else ""

    def logs(self, pod: str, since: str | None = None) -> subprocess.Popen[bytes]:
        """A pod's output as it comes, each line after its time."""
        wanted = ["logs", "--follow", "--timestamps", pod, *([f"--since-time={since}"] if since else [])]
        return subprocess.Popen(
            [*self._base, *wanted],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is ours to handle
        )

    def command(self, *words: str) -> str:
        """A line for the user to type, in this namespace."""
        namespace = ["-n", self._namespace] if self._namespace else []
        return " ".join(["kubectl", *namespace, *words])

    def _ask(self, *words: str) -> str:
        done = self._run([*words, f"--request-timeout={REQUEST_S:.0f}s"])
        if done.returncode:
            error = Gone if "(NotFound)" in done.stderr else LaunchError
            raise error(explain(done.stderr))
        return done.stdout

    def _run(
        self, words: Sequence[str], text: str = "", limit_s: float = CALL_S
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self._base, *words],
                input=text,
                capture_output=True,
                text=True,
                timeout=limit_s,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise LaunchError(
                f"the cluster did not answer `kubectl {words[0]}` within {limit_s:.0f} s; is the way to it "
                "open?"
            ) from None
        except OSError as error:
            raise LaunchError(f"kubectl cannot be started: {error}") from error


def explain(stderr: str) -> str:
    """kubectl's refusal in one line: what, where, what next; its own last line where it is a new one.

    >>> explain('Error from server (NotFound): namespaces "prod" not found')
    'namespace prod: there is none in this cluster; kubectl create namespace prod, or --set namespace=NAME'
    """
    flat = " ".join(stderr.split())
    for pattern, text in _REFUSALS:
        found = re.search(pattern, flat)
        if found:
            return text.format(*[group for group in found.groups() if group is not None])
    said = last_lines(stderr, 1)
    return f"kubectl: {said[0][:300]}" if said else "kubectl ended badly and said nothing"


def selector_of(kind: str, name: str) -> str:
    """The label that a job's pods carry: the operators set it (JobSet's is that of Trainer's pods).

    >>> selector_of("pytorchjob", "train-1")
    'training.kubeflow.org/job-name=train-1'
    """
    label = "training.kubeflow.org/job-name" if kind == "pytorchjob" else "jobset.sigs.k8s.io/jobset-name"
    return f"{label}={name}"
