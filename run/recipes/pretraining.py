"""The recipe run_pretraining: masked-language pretraining of an encoder, from text larger than memory.

    python pretraining.py --train_file texts/ --max_seq_length 128 --output_dir out

Takes the arguments of Hugging Face's run_mlm.py that have a meaning here; without any it trains on the texts
of the sample questions beside this file. Text is plain, one sentence, paragraph or document a line, or JSON
lines with a field "text"; .gz, .bz2 and .xz are unpacked once. Runs alone from a copy of this folder, as
question_answering.py does, with the same variables and exit codes. Leaves in --output_dir the model, its
tokenizer, log_history.json and, as the last thing, metrics.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from question_answering import run
from ranks import Place


def load_recipe() -> Callable[[Sequence[str], Place], None]:
    from pretrain import pretrain

    return pretrain


if __name__ == "__main__":
    run(load_recipe)
