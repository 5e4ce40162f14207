"""Parts that make fine-tuning on CPUs fast; each stands alone, and says in its file what it changes.

    import speed
    model = speed.unpadded(speed.cheap_dropout(model))

    unpadded            batches without padding
    cheap_dropout       masks from random words instead of a Bernoulli number an element
    compress_gradients  DDP's gradients as bf16, and only the rows of embeddings that were used
    large_tables        the embeddings of which it does so
    send_gradients      as DDP sends them, timed
    deal                a global batch in shares of equal work
    precision           fp32, fp32 by oneDNN, or bf16: measured, then chosen
    StepTimes, split    where the time of the steps goes
    work_of             operations of a batch, to compare with the peak

Needs torch, and transformers for its models. Measured figures: docs/speed.md.
"""

from . import precision
from .batches import deal
from .dropout import CheapDropout, cheap_dropout
from .gradients import compress_gradients, large_tables, send_gradients
from .operations import Work, work_of
from .times import Split, StepTimes, split
from .unpad import unpadded

__all__ = [
    "CheapDropout",
    "Split",
    "StepTimes",
    "Work",
    "cheap_dropout",
    "compress_gradients",
    "deal",
    "large_tables",
    "precision",
    "send_gradients",
    "split",
    "unpadded",
    "work_of",
]
