"""node_watch.py against a real HTTP server that plays EC2's metadata service."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import provision.providers
from tests.local_nodes import eventually

SCRIPT = Path(provision.providers.__file__).parent / "ec2" / "node_watch.py"


def load() -> Any:
    """The script as a module of its own: it is copied to nodes alone, so nothing else may be needed."""
    spec = importlib.util.spec_from_file_location("node_watch", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["node_watch"] = module
    spec.loader.exec_module(module)
    return module


node_watch = load()
AGAIN_S, SPOT, TIME_IS_OVER = node_watch.AGAIN_S, node_watch.SPOT, node_watch.TIME_IS_OVER
Metadata, Notice, Watcher = node_watch.Metadata, node_watch.Notice, node_watch.Watcher
due, parse_action, parse_ends_at = node_watch.due, node_watch.parse_action, node_watch.parse_ends_at

END = "2026-11-21T14:03:10Z"
END_S = 1795269790.0
NOW_S = END_S - 120


class Service(ThreadingHTTPServer):
    """IMDSv2: answers only who has a token; `action` is spot/instance-action, None for 404."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.action: str | None = None
        self.tokens: list[str] = []
        self.token_ages: list[str] = []
        self.refuse = False
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Service

    def do_PUT(self) -> None:
        if self.path == "/latest/api/token":
            self.server.tokens.append(f"secret-{len(self.server.tokens)}")
            self.server.token_ages.append(self.headers["X-aws-ec2-metadata-token-ttl-seconds"])
            self._answer(200, self.server.tokens[-1])

    def do_GET(self) -> None:
        if self.headers["X-aws-ec2-metadata-token"] not in self.server.tokens[-1:]:
            self._answer(401, "")
        elif self.server.refuse:
            self._answer(503, "")
        elif self.path != "/latest/meta-data/spot/instance-action" or self.server.action is None:
            self._answer(404, "")
        else:
            self._answer(200, self.server.action)

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        return None


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service
        service.shutdown()


class Node:
    """A watched node: its files below a folder, and how often it was powered off."""

    def __init__(self, root: Path, url: str) -> None:
        self.root, self.url, self.powered_off = root, url, 0
        (root / "etc/clusterctl").mkdir(parents=True)
        self.start()

    def start(self) -> None:
        self.watcher = Watcher(self.root, Metadata(self.url), self._power_off)

    def _power_off(self) -> None:
        self.powered_off += 1

    def ends_at(self, text: object) -> None:
        (self.root / "etc/clusterctl/ends-at").write_text(f"{text}\n")

    def look(self, now_s: float = NOW_S) -> tuple[str, float] | None:
        """What the notice says after a look at that time, None when there is none."""
        self.watcher.look(now_s)
        path = self.root / "run/clusterctl/notice"
        if not path.exists():
            return None
        told = json.loads(path.read_text())
        assert set(told) == {"reason", "ends_at"}
        return told["reason"], told["ends_at"]


@pytest.fixture
def node(tmp_path: Path, service: Service) -> Node:
    return Node(tmp_path, service.url)


# --- interruptions -----------------------------------------------------------------------------


def test_without_a_notice_of_ec2_there_is_none(node: Node) -> None:
    assert node.look() is None


def test_an_interruption_becomes_a_notice_that_everybody_may_read(node: Node, service: Service) -> None:
    service.action = json.dumps({"action": "terminate", "time": END})
    assert node.look() == (SPOT, END_S)
    path = node.root / "run/clusterctl/notice"
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert [each.name for each in path.parent.iterdir()] == ["notice"]


def test_one_token_serves_many_questions_and_is_renewed_when_it_is_refused(
    node: Node, service: Service
) -> None:
    for _ in range(3):
        node.look()
    assert service.token_ages == ["21600"]
    service.tokens.append("of another boot")
    service.action = json.dumps({"action": "stop", "time": END})
    assert node.look() is None
    assert node.look() == (SPOT, END_S)
    assert len(service.token_ages) == 2


def test_a_token_is_renewed_before_it_ends(
    node: Node, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.look()
    monkeypatch.setattr(node_watch, "TOKEN_S", 0)
    node.start()
    for _ in range(3):
        node.look()
    assert len(service.token_ages) == 4


def test_trouble_of_the_service_neither_ends_the_watch_nor_withdraws_a_notice(
    node: Node, service: Service
) -> None:
    service.action = json.dumps({"action": "terminate", "time": END})
    node.look()
    service.refuse = True
    assert node.look() == (SPOT, END_S)
    service.refuse, service.action = False, "<html>busy</html>"
    assert node.look() == (SPOT, END_S)
    node.start()
    assert node.look() == (SPOT, END_S), "nor when the watch was started again"


def test_an_interruption_that_is_called_off_is_withdrawn(node: Node, service: Service) -> None:
    service.action = json.dumps({"action": "terminate", "time": END})
    node.look()
    service.action = None
    assert node.look() is None


def test_without_a_service_only_the_time_to_live_counts(tmp_path: Path) -> None:
    node = Node(tmp_path, "http://127.0.0.1:1")
    assert node.look() is None
    node.ends_at(END_S)
    assert node.look() == (TIME_IS_OVER, END_S)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"time": 5}', '{"time": "soon"}', "null"])
def test_what_is_no_notice_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_action(text)


# --- the time to live --------------------------------------------------------------------------


def test_the_end_is_told_two_minutes_before_and_not_earlier(node: Node) -> None:
    node.ends_at(END_S)
    assert node.look(NOW_S - 1) is None
    assert node.look(NOW_S) == (TIME_IS_OVER, END_S)
    assert node.powered_off == 0


def test_the_machine_is_powered_off_at_its_time_and_again_if_that_did_not_help(node: Node) -> None:
    node.ends_at(END_S)
    node.look(END_S - 0.1)
    assert node.powered_off == 0
    for later_s in (0, 1, 2):
        node.look(END_S + later_s)
    assert node.powered_off == 1
    node.look(END_S + AGAIN_S)
    assert node.powered_off == 2


def test_an_extended_time_withdraws_the_notice(node: Node) -> None:
    node.ends_at(END_S)
    node.look()
    node.ends_at(END_S + 3600)
    assert node.look() is None
    node.look(END_S + 1)
    assert node.powered_off == 0


def test_a_notice_of_a_watch_before_this_one_is_withdrawn_too(node: Node) -> None:
    node.ends_at(END_S)
    node.look()
    node.start()
    node.ends_at("")
    assert node.look() is None


@pytest.mark.parametrize("text", ["tomorrow", "nan", "inf", "-1", "0", "\x00\xff"])
def test_an_end_that_is_no_time_powers_nothing_off_and_is_told_once(
    node: Node, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    node.ends_at(text)
    for _ in range(3):
        assert node.look(END_S + 1e9) is None
    assert node.powered_off == 0
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_the_earlier_of_two_ends_is_told() -> None:
    spot = Notice(SPOT, END_S)
    assert due(spot, END_S + 60, NOW_S) == spot
    assert due(spot, END_S - 60, NOW_S) == Notice(TIME_IS_OVER, END_S - 60)
    assert due(None, None, NOW_S) is None


def test_an_empty_end_is_none() -> None:
    assert parse_ends_at(" \n") is None


# --- the process -------------------------------------------------------------------------------


def start(root: Path, url: str, python: str = sys.executable) -> subprocess.Popen[str]:
    """The script as on a node: alone in its folder."""
    alone = root / "usr/local/lib/clusterctl"
    alone.mkdir(parents=True)
    command = [python, shutil.copy(SCRIPT, alone), "--root", str(root), "--imds", url, "--poll", "0.1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_process_goes_on_in_spite_of_everything_and_tells_no_secret(
    tmp_path: Path, service: Service
) -> None:
    notice = tmp_path / "run/clusterctl/notice"
    (tmp_path / "run").write_text("in the way")
    process = start(tmp_path, service.url)
    try:
        service.action = json.dumps({"action": "terminate", "time": END})
        assert eventually(lambda: len(service.tokens) > 0)
        time.sleep(0.3)
        (tmp_path / "run").unlink()
        assert eventually(notice.exists)
        service.action = None
        assert eventually(lambda: not notice.exists())
        assert process.poll() is None
    finally:
        process.terminate()
        out = process.communicate(timeout=5)[0]
    assert "spot interruption at 1795269790" in out
    assert "secret" not in out


@pytest.mark.skipif(shutil.which("python3.8") is None, reason="no Python 3.8 here")
def test_python_3_8_runs_it(tmp_path: Path, service: Service) -> None:
    service.action = json.dumps({"action": "terminate", "time": END})
    if subprocess.run(["python3.8", "--version"], capture_output=True).returncode != 0:
        pytest.skip("no Python 3.8 here")
    process = start(tmp_path, service.url, "python3.8")
    try:
        assert eventually((tmp_path / "run/clusterctl/notice").exists)
    finally:
        process.terminate()
        process.communicate(timeout=5)


def test_it_needs_nothing_but_python() -> None:
    """It is copied to nodes alone."""
    source = SCRIPT.read_text()
    imported = re.findall(r"^(?:from|import) (\w+)", source, re.M)
    assert set(imported) <= set(sys.stdlib_module_names)
