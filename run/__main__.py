"""`clusterctl`, and `python -m run`: no traceback where Ctrl-C comes while the commands are being read."""

from __future__ import annotations

import signal


def main() -> None:
    """Entry point."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where it is to be ignored, in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from run.cli import main as run_command

    signal.signal(signal.SIGINT, handler)
    run_command()


if __name__ == "__main__":
    main()
