"""The recipe run_qa: fine-tune an encoder for extractive question answering, on any number of ranks.

    python question_answering.py --train_file train.json --validation_file dev.json --output_dir out

Takes the arguments of Hugging Face's run_qa.py (see --help); without any it trains the sample
questions beside this file. Runs from a copy of this folder and of `speed` beside it: torch, transformers
and numpy, `datasets` only for --dataset_name. RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT come
from the launcher; without RANK it is a single process. Leaves in --output_dir the model, its
tokenizer, predictions.json, log_history.json and, as the last thing, metrics.json.

Exit code 0, 2 for a wrong argument, 1 for another error, 128 + n after signal n.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence

from ranks import Place, SilentExit, UserError, first_line, leave, leave_on_signals, read_place, report_error


def run(load: Callable[[], Callable[[Sequence[str], Place], None]]) -> None:
    """Run what `load` imports, with this process's arguments and place, and end with its exit code."""
    leave_on_signals()
    place = Place()
    try:
        place = read_place(os.environ)
        # Not before the signals are taken: torch takes seconds to import, and starts threads.
        load()(sys.argv[1:], place)
    except UserError as error:
        report_error(place.rank, str(error))
        leave(error.exit_code)
    except SilentExit as error:
        leave(error.exit_code)
    except ModuleNotFoundError as error:
        report_error(
            place.rank, f"no module {error.name}: this Python is not a training stack; run clusterctl up"
        )
        leave(1)
    except Exception as error:
        leave(report_failure(place, error))
    leave(0)


def report_failure(place: Place, error: Exception) -> int:
    """Say in one line that another rank is gone; show where from for anything else."""
    signs = [sign for sign in LOST_RANK if sign in str(error)]
    if signs:
        text = f"lost another rank ({signs[0]}); look at the first error of the others, and at their nodes"
    else:
        text = f"{type(error).__name__}: {first_line(error)}"
        traceback.print_exc()
    report_error(place.rank, text)
    return 1


LOST_RANK = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "Application timeout",
    "gloo",
)
"""What gloo's errors say when a peer has died or does not answer (gloo/transport/tcp/pair.cc)."""


def load_recipe() -> Callable[[Sequence[str], Place], None]:
    from fine_tune import fine_tune

    return fine_tune


if __name__ == "__main__":
    run(load_recipe)
