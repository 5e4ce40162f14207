"""check-amx: which nodes have AMX, why the others have not, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from playbooks.amx import FLAGS, AmxVerdict, judge
from provision.errors import ClusterctlError
from provision.facts import NodeFacts
from provision.model import Cluster
from provision.play import gather
from run.commands.common import open_hosts, print_json, print_table, standing_cluster


def check_amx(name: str | None, *, as_json: bool) -> int:
    """Returns the exit code: 0 when every node has AMX, else 1."""
    _, cluster = standing_cluster(name)
    with open_hosts(cluster) as hosts:
        seen = gather(cluster, hosts)
    facts = {name: each for name, each in seen.items() if isinstance(each, NodeFacts)}
    unreachable = {name: each for name, each in seen.items() if isinstance(each, ClusterctlError)}
    verdicts = {name: judge(each) for name, each in facts.items()}
    if as_json:
        print_json([*(_as_json(n, facts[n], verdicts[n]) for n in facts), *_errors_json(unreachable)])
    else:
        _print(cluster, facts, verdicts, unreachable)
    return 1 if unreachable or any(verdict.problem for verdict in verdicts.values()) else 0


def _print(
    cluster: Cluster,
    facts: Mapping[str, NodeFacts],
    verdicts: Mapping[str, AmxVerdict],
    unreachable: Mapping[str, ClusterctlError],
) -> None:
    rows = [(n, _cpu(facts[n]), _flags(v), _kernel(facts[n], v), _word(v)) for n, v in verdicts.items()]
    if rows:
        print_table(("NODE", "CPU", "FLAGS", "KERNEL", "AMX"), rows)
        print("FLAGS and KERNEL are what lscpu and uname say; no tile instruction was executed.")
    for verdict in dict.fromkeys(verdicts.values()):
        if verdict.problem:
            names = [name for name, each in verdicts.items() if each == verdict]
            print(f"{', '.join(names)}: {verdict.problem}; {verdict.fix}")
    for error in unreachable.values():
        print(error)
    if any(verdict.problem for verdict in verdicts.values()) and not cluster.require_amx:
        print("require_amx is false for this cluster: training goes on without AMX.")


def _cpu(facts: NodeFacts) -> str:
    shown = facts.cpu.model_name.replace("(R)", "").replace("(TM)", "")
    shown = shown if len(shown) <= 30 else shown[:29] + "…"
    return f"{shown} (simulated)" if facts.cpu.simulated and "simulated" not in shown.lower() else shown


def _flags(verdict: AmxVerdict) -> str:
    return f"{len(verdict.flags)} of {len(FLAGS)}"


def _kernel(facts: NodeFacts, verdict: AmxVerdict) -> str:
    release = facts.kernel.split("-")[0]
    return f"{release} {'ok' if verdict.kernel_ok else 'too old'}"


def _word(verdict: AmxVerdict) -> str:
    if verdict.problem:
        return "no"
    return "flags only (simulated)" if verdict.simulated else "yes"


def _as_json(name: str, facts: NodeFacts, verdict: AmxVerdict) -> dict[str, object]:
    return {
        "node": name,
        "amx": verdict.problem is None,
        "flags": list(verdict.flags),
        "kernel": facts.kernel,
        "kernel_ok": verdict.kernel_ok,
        "cpu": facts.cpu.model_name,
        "simulated": verdict.simulated,
        "problem": verdict.problem,
        "fix": verdict.fix or None,
    }


def _errors_json(unreachable: Mapping[str, ClusterctlError]) -> list[dict[str, object]]:
    return [{"node": name, "amx": False, "problem": str(error)} for name, error in unreachable.items()]
