"""Downloads: checked before they are put in place, with curl and without, their URL shown nowhere."""

import contextlib
import hashlib
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from provision.host import quoted
from provision.step import Status
from provision.steps import Download
from tests.shell_host import ShellHost
from tests.step_cases import ME, run, statuses

COMMANDS = "sh readlink dirname basename mkdir rm sha256sum chown chmod mv stat"


def test_a_download_with_another_checksum_is_told_and_not_put_in_place(tmp_path):
    (tmp_path / "origin").write_text("tampered")
    (tmp_path / "copy").write_text("old")
    step = Download(f"file://{tmp_path}/origin", f"{tmp_path}/copy", "0" * 64, ME)

    (result,) = run([step])
    assert result.status is Status.FAILED
    assert "copy was not downloaded: its sha256 is " in result.detail
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        "origin": "tampered",
        "copy": "old",
    }


@pytest.mark.parametrize("without_curl", [False, True])
def test_a_download_comes_over_http_and_its_url_is_shown_nowhere(tmp_path, without_curl):
    served = tmp_path / "served"
    served.mkdir()
    (served / "data").write_bytes(b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    host = WithoutCurl(tmp_path) if without_curl else ShellHost()
    with web_server(served) as url:
        good = Download(f"{url}/data?signature=hunter2", f"{tmp_path}/copy", digest, ME)
        gone = Download(f"{url}/gone?signature=hunter2", f"{tmp_path}/gone", digest, ME)
        assert statuses(run([good], host)) == [Status.CHANGED]
        (result,) = run([gone], host)
    assert (tmp_path / "copy").read_bytes() == b"content"
    assert "404" in result.detail
    assert "hunter2" not in f"{result}{good!r}{good.probe}{result.detail}"


class WithoutCurl(ShellHost):
    """A host on which there is no curl: its PATH has links to the other commands."""

    def __init__(self, folder):
        super().__init__()
        self._bin = folder / "bin"
        self._bin.mkdir()
        for name in COMMANDS.split():
            (self._bin / name).symlink_to(shutil.which(name))

    def run(self, script, *args, **options):
        return super().run(f"PATH={self._bin}\n{quoted(script, *args)}", **options)


@contextlib.contextmanager
def web_server(folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
