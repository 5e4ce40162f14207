"""The output of a job's pods as it comes: a `kubectl logs --follow` a pod, taken up again where it ended."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from run.kube import Kubectl
from run.pods import Pod

LINES_AT_ONCE = 1000
TRIES = 5
"""For a pod whose output ends in an error: the way to the cluster is cut now and then."""


@dataclass
class _Stream:
    """Output of one pod. `since` is the time of its last line, `started` how often the pod had begun then."""

    process: subprocess.Popen[bytes]
    started: int
    thread: threading.Thread = field(default_factory=threading.Thread)
    since: str = ""
    tries: int = 1

    @property
    def is_open(self) -> bool:
        return self.thread.is_alive()

    @property
    def is_whole(self) -> bool:
        """Whether it came to the end of the output; given up counts too."""
        return not self.is_open and (self.process.poll() == 0 or self.tries >= TRIES)


class PodLogs:
    """Keeps each pod's output in `folder`/POD.log, and hands the lines out."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        self._kubectl, self._folder = kubectl, folder
        self._streams: dict[str, _Stream] = {}
        self._lines: queue.Queue[tuple[str, str]] = queue.Queue()

    def attach(self, pods: Sequence[Pod]) -> None:
        """Open what is not open and may say more: new pods, begun again, cut off."""
        for pod in pods:
            stream = self._streams.get(pod.name)
            if pod.started and (stream is None or self._is_due(stream, pod)):
                self._open(pod, stream)

    def lines(self, wait_s: float) -> Iterator[tuple[str, str]]:
        """(pod, line) of what has come; the first is waited for."""
        for _ in range(LINES_AT_ONCE):
            try:
                yield self._lines.get(timeout=wait_s)
            except queue.Empty:
                return
            wait_s = 0.0

    def have_ended(self, pods: Sequence[Pod]) -> bool:
        """Whether all has been read of pods that have ended; a pod that never began says nothing."""
        begun = [self._streams.get(pod.name) for pod in pods if pod.started]
        return self._lines.empty() and all(stream is not None and stream.is_whole for stream in begun)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.process.kill()
            stream.process.wait()
            stream.thread.join(timeout=1)

    def _is_due(self, stream: _Stream, pod: Pod) -> bool:
        if stream.is_open:
            return False
        return pod.started > stream.started or not stream.is_whole or pod.phase == "Running"

    def _open(self, pod: Pod, before: _Stream | None) -> None:
        since = before.since if before else ""
        is_again = before is not None and pod.started == before.started
        stream = _Stream(self._kubectl.logs(pod.name, since or None), pod.started, since=since)
        stream.tries = before.tries + 1 if before and is_again else 1
        stream.thread = threading.Thread(target=self._read, args=(pod.name, stream), daemon=True)
        stream.thread.start()
        self._streams[pod.name] = stream

    def _read(self, pod: str, stream: _Stream) -> None:
        assert stream.process.stdout is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        # --since-time is whole seconds: what was read before comes again.
        known = stream.since
        with (self._folder / f"{pod}.log").open("a") as log:
            for raw in stream.process.stdout:
                time, _, text = raw.decode(errors="replace").rstrip("\r\n").partition(" ")
                if time <= known:
                    continue
                stream.since = time
                print(text, file=log, flush=True)
                self._lines.put((pod, text))
        stream.process.wait()
