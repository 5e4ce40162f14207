"""One layer of a BERT-like encoder over sequences that lie end to end in one flat row, no padding between.

    x (T, H) -> attention within each sequence -> dropout, add, LayerNorm -> MLP -> dropout, add, LayerNorm

One autograd function with its backward written out, because then

1. query, key and value are one product instead of three;
2. masks, scales and sums happen in place, in the layer's own type: under bf16 nothing becomes fp32 on the
   way, except inside LayerNorm, softmax and the products' sums;
3. what backward needs is kept once: scores as probabilities, and a byte each for what was dropped.

A sequence at a time: the scores of one (12 heads x 182 x 182 in bf16 are 0.8 MB) stay in a core's L2
cache through softmax, mask and both products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.autograd.function import once_differentiable

from .dropout import Masks, keep, widened

aten = torch.ops.aten

GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
"""Activations by the name in a model's configuration, with torch's word for the kind of GELU."""


@dataclass(frozen=True)
class Shape:
    """What one call of a layer needs to know beside its tensors.

    `bounds`: first row of each sequence and, last, the end of the last one; rows behind it belong to none.
    Rates: of probabilities, of the attention's output, of the MLP's output.
    """

    bounds: tuple[int, ...]
    heads: int
    gelu: str
    eps: tuple[float, float]
    rates: tuple[float, float, float]
    masks: Masks
    training: bool

    @property
    def pieces(self) -> list[tuple[int, int]]:
        return list(zip(self.bounds[:-1], self.bounds[1:], strict=True))


class EncoderLayer(torch.autograd.Function):
    """apply(x, shape, *weights) -> (T, H) of x's type. Weights in the order of WEIGHTS, any float type."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, shape: Shape, *weights: torch.Tensor) -> torch.Tensor:
        kind = x.dtype
        wq, bq, wk, bk, wv, bv, *others = weights
        w_in = torch.cat([weight.to(kind) for weight in (wq, wk, wv)])
        b_in = torch.cat([bias.to(kind) for bias in (bq, bk, bv)])
        wo, bo, n1, c1, wu, bu, wd, bd, n2, c2 = others
        wo, wu, wd = (weight.to(kind) for weight in (wo, wu, wd))
        bo, bu, bd = (bias.to(kind) for bias in (bo, bu, bd))
        size = [x.shape[1]]

        attended, kept = attend(torch.addmm(b_in, x, w_in.t()), shape)
        sum1, mask1, scale1 = add_dropped(torch.addmm(bo, attended, wo.t()), x, shape, 1)
        middle, mean1, rstd1 = torch.native_layer_norm(sum1, size, n1, c1, shape.eps[0])
        up = torch.addmm(bu, middle, wu.t())
        active = aten.gelu(up, approximate=shape.gelu)
        sum2, mask2, scale2 = add_dropped(torch.addmm(bd, active, wd.t()), middle, shape, 2)
        out, mean2, rstd2 = torch.native_layer_norm(sum2, size, n2, c2, shape.eps[1])
        if shape.training:
            ctx.shape, ctx.scales, ctx.kinds = shape, (scale1, scale2), [weight.dtype for weight in weights]
            ctx.kept = kept
            ctx.save_for_backward(
                *(x, w_in, attended, wo, n1, c1, mask1, sum1, mean1, rstd1),
                *(middle, wu, up, active, wd, n2, c2, mask2, sum2, mean2, rstd2),
            )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, d_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, w_in, attended, wo, n1, c1, mask1, sum1, mean1, rstd1, *others = ctx.saved_tensors
        middle, wu, up, active, wd, n2, c2, mask2, sum2, mean2, rstd2 = others
        shape, (scale1, scale2) = ctx.shape, ctx.scales
        size, all_three = [x.shape[1]], [True, True, True]

        d_sum, d_n2, d_c2 = aten.native_layer_norm_backward(
            d_out.contiguous(), sum2, size, mean2, rstd2, n2, c2, all_three
        )
        d_down = masked(d_sum, mask2, scale2)
        d_wd, d_bd = d_down.t() @ active, d_down.sum(0)
        d_up = aten.gelu_backward(d_down @ wd, up, approximate=shape.gelu)
        d_wu, d_bu = d_up.t() @ middle, d_up.sum(0)
        d_middle = torch.addmm(d_sum, d_up, wu)
        d_sum, d_n1, d_c1 = aten.native_layer_norm_backward(
            d_middle, sum1, size, mean1, rstd1, n1, c1, all_three
        )
        d_output = masked(d_sum, mask1, scale1)
        d_wo, d_bo = d_output.t() @ attended, d_output.sum(0)
        d_in = attend_backward(d_output @ wo, ctx.kept, shape)
        ctx.kept = None
        d_w, d_b = (d_in.t() @ x).chunk(3), d_in.sum(0).chunk(3)
        d_x = torch.addmm(d_sum, d_in, w_in)
        grads = (d_w[0], d_b[0], d_w[1], d_b[1], d_w[2], d_b[2], d_wo, d_bo, d_n1, d_c1)
        grads = (*grads, d_wu, d_bu, d_wd, d_bd, d_n2, d_c2)
        return d_x, None, *(grad.to(kind) for grad, kind in zip(grads, ctx.kinds, strict=True))


WEIGHTS = ["wq", "bq", "wk", "bk", "wv", "bv", "wo", "bo", "n1", "c1", "wu", "bu", "wd", "bd", "n2", "c2"]
"""Weight and bias of query, key, value, output, first LayerNorm, up, down, second LayerNorm."""


def add_dropped(
    values: torch.Tensor, rest: torch.Tensor, shape: Shape, which: int
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """rest + dropout(values), with the mask and scale used."""
    mask, scale = shape.masks.draw(values.numel(), shape.rates[which])
    if mask is None:
        return values.add_(rest), None, 1.0
    return torch.add(rest, keep(values, mask), alpha=scale), mask, scale


def masked(grad: torch.Tensor, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
    return grad if mask is None else keep(grad, mask).mul_(scale)


# --- attention ---------------------------------------------------------------------------------

GRAIN = 32
"""Attention pads each sequence to a multiple of this. oneDNN makes a kernel for every shape of a product (0.2
ms each) and keeps 1024; sequences of hundreds of lengths would need more. Vectors of 32 bf16 fit then, too.
"""


@dataclass(frozen=True)
class Attended:
    """What backward needs of a sequence's attention: queries, keys and values (3, heads, L, D), probabilities
    (heads, L, L), which of these were kept, and by what those were scaled.
    """

    parts: torch.Tensor
    probabilities: torch.Tensor
    mask: torch.Tensor | None
    scale: float


def attend(rows: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, list[Attended]]:
    """Attention's output (T, H) for queries, keys and values (T, 3 H); 0 for rows of no sequence."""
    out = rows.new_empty(len(rows), rows.shape[1] // 3)
    out[shape.bounds[-1] :] = 0
    kept: list[Attended] = []
    for begin, end in shape.pieces:
        parts = by_head(rows[begin:end], 3, shape.heads)
        query, key, value = parts
        scores = scaled(query, key.transpose(1, 2), query.shape[2] ** -0.5)
        scores[:, :, end - begin :] = -torch.inf
        probabilities = torch.softmax(scores, -1)
        mask, scale = shape.masks.draw(probabilities.numel(), shape.rates[0])
        dropped = probabilities if mask is None else keep(probabilities, mask)
        put_by_row(scaled(dropped, value, scale)[None], out[begin:end])
        if shape.training:
            kept.append(Attended(parts, probabilities, mask, scale))
    return out, kept


def attend_backward(d_out: torch.Tensor, kept: Sequence[Attended], shape: Shape) -> torch.Tensor:
    """Gradient of the rows (T, 3 H) of queries, keys and values."""
    d_rows = d_out.new_empty(len(d_out), 3 * d_out.shape[1])
    d_rows[shape.bounds[-1] :] = 0
    for (begin, end), one in zip(shape.pieces, kept, strict=True):
        query, key, value = one.parts
        (d_output,) = by_head(d_out[begin:end], 1, shape.heads)
        d_output *= one.scale
        dropped, d_dropped = one.probabilities, torch.bmm(d_output, value.transpose(1, 2))
        if one.mask is not None:
            mask = widened(one.mask, dropped)
            dropped, d_dropped = keep(dropped, mask), keep(d_dropped, mask)
        d_scores = aten._softmax_backward_data(d_dropped, one.probabilities, -1, d_out.dtype)
        d_parts = torch.empty_like(one.parts)
        scaled(d_scores, key, query.shape[2] ** -0.5, d_parts[0])
        scaled(d_scores.transpose(1, 2), query, query.shape[2] ** -0.5, d_parts[1])
        torch.bmm(dropped.transpose(1, 2), d_output, out=d_parts[2])
        put_by_row(d_parts, d_rows[begin:end])
    return d_rows


def by_head(rows: torch.Tensor, parts: int, heads: int) -> torch.Tensor:
    """(L, parts H) -> (parts, heads, L, D), contiguous, L padded with zeros to a multiple of GRAIN."""
    found = rows.view(len(rows), parts, heads, rows.shape[1] // (parts * heads))
    padded = found.new_empty(parts, heads, -(-len(rows) // GRAIN) * GRAIN, found.shape[3])
    padded[:, :, : len(rows)] = found.permute(1, 2, 0, 3)
    padded[:, :, len(rows) :] = 0
    return padded


def put_by_row(parts: torch.Tensor, rows: torch.Tensor) -> None:
    """(parts, heads, L, D), L padded, into `rows` (L, parts H)."""
    into = rows.view(len(rows), parts.shape[0], parts.shape[1], parts.shape[3])
    into.copy_(parts[:, :, : len(rows)].permute(2, 0, 1, 3))


def scaled(
    left: torch.Tensor, right: torch.Tensor, scale: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    """scale * left @ right, batched; the product itself applies the scale."""
    if scale == 1:
        return torch.bmm(left, right, out=out)
    nothing = left.new_empty(1).expand(len(left), left.shape[1], right.shape[2])
    return torch.baddbmm(nothing, left, right, beta=0, alpha=scale, out=out)


def bounds(lengths: Sequence[int]) -> tuple[int, ...]:
    """First row of each sequence and the end of the last.

    >>> bounds([3, 2])
    (0, 3, 5)
    """
    found = [0]
    for length in lengths:
        found.append(found[-1] + length)
    return tuple(found)
