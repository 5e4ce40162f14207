"""Train with the best instructions that oneDNN finds here, and held to the next lower ones, in turn.

Runs on nodes, under a stack's Python, beside onednn.py, capture.py and library.py; prints one JSON line.

    ab.py TURNS SHARE

Two processes, since oneDNN reads ONEDNN_MAX_CPU_ISA once: one as the node is, one capped. They take turns of
some steps each, so that whatever else disturbs the node disturbs both, and say which kernels multiplied.
SHARE is the part of its cores that the node may count on.

A step is forward, backward and AdamW, in bf16, of three encoder layers of MiniLM's size (384 wide, 12 heads);
four rows of 128 tokens a core, on the cores of one NUMA node, as one rank has them.
"""

# mypy: disable-error-code="import-not-found"
# The operator's side has no torch, and a node's torch has no use for pathlib here.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from onednn import isa_of, products

# What to hold oneDNN to, by what it ran on, the best first.
NEXT_LOWER = {
    "amx": "AVX512_CORE_BF16",
    "avx512_bf16": "AVX512_CORE",
    "avx512": "AVX2",
    "avx2": "SSE41",
}
WARM_UP = 2
TURN_S = 0.2
MOST_STEPS = 50  # a turn


def main() -> None:
    turns, share = int(sys.argv[-2]), float(sys.argv[-1])
    cores = sorted(cores_of_a_rank())
    threads = max(1, int(len(cores) * share))
    os.sched_setaffinity(0, cores)
    one = Trainee("", threads)
    found = one.ask("kernels")
    best = next((isa for isa in NEXT_LOWER if isa in map(isa_of, found)), None)
    if best is None:
        raise SystemExit(
            f"nothing to hold oneDNN to: products ran on {', '.join(found) or 'no kernel of it'}"
        )
    other = Trainee(NEXT_LOWER[best], threads)
    both = {
        "as_it_is": {"cap": os.environ.get("ONEDNN_MAX_CPU_ISA", ""), "kernels": found, "step_s": []},
        "capped": {"cap": NEXT_LOWER[best], "kernels": other.ask("kernels"), "step_s": []},
    }
    steps = max(1, min(MOST_STEPS, round(TURN_S / max(one.ask("steps", 1), 1e-6))))
    for _ in range(turns):
        both["as_it_is"]["step_s"].append(one.ask("steps", steps) / steps)
        both["capped"]["step_s"].append(other.ask("steps", steps) / steps)
    print(json.dumps({"ab": 1, "threads": threads, "steps": steps, "best": best, **both}))


def cores_of_a_rank() -> set[int]:
    """One thread of each core that this process may use, of the first NUMA node that has any."""
    from library import one_thread_a_core

    allowed = os.sched_getaffinity(0)
    folder = "/sys/devices/system/node"
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:  # noqa: PTH112
        if name[:4] == "node" and name[4:].isdigit():
            with open(f"{folder}/{name}/cpulist") as file:
                here = allowed & cpus_in(file.read())
            if here:
                return set(one_thread_a_core(here))
    return set(one_thread_a_core(allowed))


def cpus_in(text: str) -> set[int]:
    """
    >>> sorted(cpus_in("0-2,5"))
    [0, 1, 2, 5]
    """
    ends = [part.split("-") for part in text.strip().split(",") if part]
    return {cpu for part in ends for cpu in range(int(part[0]), int(part[-1]) + 1)}


class Trainee:
    """A process that trains when it is told to; it ends with this one."""

    def __init__(self, cap: str, threads: int) -> None:
        asked, self._ask = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._ask)
            os.close(self._answers)
            serve(asked, answers, cap, threads)
        os.close(asked)
        os.close(answers)
        self._lines = os.fdopen(self._answers)

    def ask(self, *words: object) -> Any:
        """Its answer. Ends this process with its last words where it cannot answer."""
        os.write(self._ask, f"{json.dumps(words)}\n".encode())
        line = self._lines.readline()
        answer = json.loads(line) if line else {"error": "the training process was killed"}
        if isinstance(answer, dict) and "error" in answer:
            os.waitpid(self._pid, 0)
            raise SystemExit(str(answer["error"]))
        return answer


def serve(asked: int, answers: int, cap: str, threads: int) -> None:
    """Answer questions until there are no more; never returns."""
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG
    os.dup2(2, 1)  # the one line on stdout is the parent's
    if cap:
        os.environ["ONEDNN_MAX_CPU_ISA"] = cap
    try:
        step = make_step(threads)
        for line in os.fdopen(asked):
            os.write(answers, f"{json.dumps(answer(json.loads(line), step))}\n".encode())
        os._exit(0)
    except BaseException as error:
        os.write(answers, f"{json.dumps({'error': f'{type(error).__name__}: {error}'[:300]})}\n".encode())
        os._exit(1)


def answer(words: list[Any], step: Callable[[], None]) -> Any:
    """["kernels"] -> milliseconds by kernel in one step; ["steps", N] -> seconds of N steps."""
    if words[0] == "kernels":
        from capture import listening

        for _ in range(WARM_UP):
            step()
        with listening() as lines:
            step()
        return {kernel: round(ms, 3) for kernel, (ms, _) in products(lines).items()}
    begun = time.perf_counter()
    for _ in range(words[1]):
        step()
    return time.perf_counter() - begun


def make_step(threads: int) -> Callable[[], None]:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(384, 12, 1536, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    rows = torch.randn(4 * threads, 128, 384)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(rows).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
