"""The command's very first moments."""

from __future__ import annotations

import signal
import subprocess
import sys

READING = """
import sys, time
class SlowToRead:
    def __getattr__(self, name):
        print("reading", flush=True)
        time.sleep(60)
sys.modules["run.cli"] = SlowToRead()
import run.__main__
run.__main__.main()
"""


def test_ctrl_c_while_the_commands_are_being_read_shows_no_traceback() -> None:
    """Python itself takes some 20 ms before it reads anything of ours; that is out of reach."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", READING], stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (-signal.SIGINT, "")
