"""Dropout whose mask is cheap.

nn.Dropout on a CPU asks `bernoulli_` for every element: one thread, 5.75 ns an element, 22 % of a step of
MiniLM-L6. Here the mask is cut from random 64-bit words: eight elements a word, each byte compared with a
threshold, 0.45 ns an element with its use, on one core of an AMD with avx512_bf16.

What changes: other elements are dropped than nn.Dropout would drop for the same seed. A rate is rounded to
1/256 (0.1 becomes 26/256 = 0.1016) where that is within 5 % of it, else to 1/65536; what is kept is scaled
by the rounded rate, so the expectation is exact. The words come from torch's own generator: `manual_seed`
makes a run repeatable, and a checkpoint that keeps torch's state goes on with the same masks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers as wide as an element of so many bytes."""


@dataclass(frozen=True)
class Rate:
    """A dropout rate as `count` of 2**`bits`.

    >>> Rate.near(0.1)
    Rate(count=26, bits=8)
    >>> Rate.near(0.01)
    Rate(count=655, bits=16)
    """

    count: int
    bits: int

    @classmethod
    def near(cls, rate: float) -> Rate:
        for bits in (8, 16):
            count = round(rate * 2**bits)
            if abs(count / 2**bits - rate) <= 0.05 * rate:
                break
        return cls(count, bits)

    @property
    def value(self) -> float:
        return self.count / 2**self.bits

    @property
    def scale(self) -> float:
        """By which kept elements grow."""
        return 1 / (1 - self.value)


def draw_mask(count: int, rate: Rate) -> torch.Tensor:
    """`count` integers, -1 (all bits set: keep) or 0 (drop), one or two bytes each."""
    kind = torch.int8 if rate.bits == 8 else torch.int16
    a_word = 64 // rate.bits
    # Not random_(): that leaves the highest bit 0, and with it one byte in eight too small.
    words = torch.empty(-(-count // a_word), dtype=torch.int64).random_(-(2**63), None)
    # In place, as `>=` to a new tensor of bool takes ten times as long.
    return words.view(kind)[:count].ge_(rate.count - 2 ** (rate.bits - 1)).neg_()


def keep(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`values` with those of mask 0 set to zero; the bits of the others are untouched.

    A product with a mask of bool takes eight times as long.
    """
    words = WORDS[values.element_size()]
    return (values.view(words) & widened(mask, values)).view(values.dtype)


def widened(mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The mask in the shape and width of `values`, for those who use it twice."""
    return mask.view(values.shape).to(WORDS[values.element_size()])


class CheapDropout(nn.Dropout):
    """nn.Dropout with a cheap mask; `p` may be changed as there."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0:
            return values
        return drop(values, self.p)


def drop(values: torch.Tensor, rate: float) -> torch.Tensor:
    """Training's dropout: about `rate` of the values zero, the others scaled; same shape and type."""
    if rate >= 1:
        return values * 0
    return _Drop.apply(values, Rate.near(rate))


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: torch.Tensor, rate: Rate) -> torch.Tensor:
        ctx.rate = rate
        mask = draw_mask(values.numel(), rate)
        ctx.save_for_backward(mask)
        return keep(values.contiguous(), mask).mul_(rate.scale)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        return keep(grad.contiguous(), mask).mul_(ctx.rate.scale), None


# --- models ------------------------------------------------------------------------------------


def cheap_dropout(model: nn.Module) -> nn.Module:
    """The same model, its nn.Dropout modules and its attention's dropout with cheap masks.

    Attention: models of transformers (4.48 and later) that choose it by name; the scores are then
    computed outright, as SDPA on a CPU does too where there is dropout. Others keep their attention's.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                replacement = CheapDropout(child.p)
                replacement.training = child.training
                setattr(parent, name, replacement)
    _set_attention(model)
    return model


def _set_attention(model: nn.Module) -> None:
    """Register attention with cheap dropout, and choose it where the model lets us."""
    if not getattr(model, "_supports_attention_backend", False):
        return
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask
    except ImportError:  # an older transformers
        return
    AttentionInterface.register("cheap_dropout", attend)
    AttentionMaskInterface.register("cheap_dropout", eager_mask)
    model.set_attn_implementation("cheap_dropout")


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """transformers' eager attention: (B, heads, L, D) each; returns (B, L, heads, D) and the weights."""
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1)
    if module.training and dropout:
        weights = drop(weights, dropout)
    return (weights.to(value.dtype) @ value).transpose(1, 2).contiguous(), weights


# --- stock -------------------------------------------------------------------------------------


def draw_stock_mask(count: int, rate: float) -> torch.Tensor:
    """As draw_mask, with torch's own Bernoulli numbers."""
    return torch.empty(count, dtype=torch.int8).bernoulli_(1 - rate).neg_()


@dataclass(frozen=True)
class Masks:
    """Where a layer's masks come from: cheap ones, or torch's own."""

    cheap: bool

    def draw(self, count: int, rate: float) -> tuple[torch.Tensor | None, float]:
        """A mask and the scale of what is kept; None and 1 without dropout."""
        if rate <= 0:
            return None, 1.0
        if not self.cheap:
            return draw_stock_mask(count, rate), 1 / (1 - rate)
        near = Rate.near(rate)
        return draw_mask(count, near), near.scale
