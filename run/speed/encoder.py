"""One layer of a BERT-like encoder over sequences that lie end to end in one flat row, no padding between.

    x (T, H) -> attention within each sequence -> dropout, add, LayerNorm -> MLP -> dropout, add, LayerNorm

One autograd function with its backward written out, because then

1. query, key and value are one product instead of three;
2. masks, scales and sums happen in place, in the layer's own type: under bf16 nothing becomes fp32 on the
   way, except inside LayerNorm, softmax and the products' sums;
3. what backward needs is kept once: scores are kept as probabilities with and without what was dropped.

A sequence at a time: the scores of one (12 heads x 182 x 182 in bf16 are 0.8 MB) stay in a core's L2
cache through softmax, mask and both products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.autograd.function import once_differentiable

from .dropout import Masks, keep

aten = torch.ops.aten

GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
"""Activations by the name in a model's configuration, with torch's word for the kind of GELU."""


@dataclass(frozen=True)
class Shape:
    """What one call of a layer needs to know beside its tensors.

    `bounds`: first row of each sequence and, last, the number of rows. Rates: of probabilities, of the
    attention's output, of the MLP's output.
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
        w_in, b_in = torch.cat([wq, wk, wv]).to(kind), torch.cat([bq, bk, bv]).to(kind)
        wo, bo, n1, c1, wu, bu, wd, bd, n2, c2 = others
        wo, wu, wd = (weight.to(kind) for weight in (wo, wu, wd))
        bo, bu, bd = (bias.to(kind) for bias in (bo, bu, bd))
        size = [x.shape[1]]

        heads_first = split_heads(torch.addmm(b_in, x, w_in.t()), shape.heads)
        attended, probabilities = attend(heads_first, shape)
        sum1, mask1, scale1 = add_dropped(torch.addmm(bo, attended, wo.t()), x, shape, 1)
        middle, mean1, rstd1 = torch.native_layer_norm(sum1, size, n1, c1, shape.eps[0])
        up = torch.addmm(bu, middle, wu.t())
        active = aten.gelu(up, approximate=shape.gelu)
        sum2, mask2, scale2 = add_dropped(torch.addmm(bd, active, wd.t()), middle, shape, 2)
        out, mean2, rstd2 = torch.native_layer_norm(sum2, size, n2, c2, shape.eps[1])
        if shape.training:
            ctx.shape, ctx.scales, ctx.kinds = shape, (scale1, scale2), [weight.dtype for weight in weights]
            ctx.probabilities = probabilities
            ctx.save_for_backward(
                *(x, w_in, heads_first, attended, wo, n1, c1, mask1, sum1, mean1, rstd1),
                *(middle, wu, up, active, wd, n2, c2, mask2, sum2, mean2, rstd2),
            )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, d_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, w_in, heads_first, attended, wo, n1, c1, mask1, sum1, mean1, rstd1, *others = ctx.saved_tensors
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
        d_in = attend_backward(d_output @ wo, attended, heads_first, ctx.probabilities, shape)
        ctx.probabilities = None
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


def split_heads(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """(T, 3 H) -> (3, heads, T, D), contiguous."""
    return rows.view(len(rows), 3, heads, -1).permute(1, 2, 0, 3).contiguous()


def join_heads(heads_first: torch.Tensor) -> torch.Tensor:
    """(3, heads, T, D) -> (T, 3 H)."""
    return heads_first.permute(2, 0, 1, 3).reshape(heads_first.shape[2], -1)


Probabilities = list[tuple[torch.Tensor, torch.Tensor, float]]
"""For each sequence its probabilities, the same with dropped ones zero, and the scale of the kept."""


def attend(heads_first: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, Probabilities]:
    """Attention's output (T, H), and for backward the probabilities (heads, L, L) of each sequence."""
    query, key, value = heads_first
    heads, rows, width = query.shape
    out = query.new_empty(rows, heads, width)
    kept: Probabilities = []
    for begin, end in shape.pieces:
        q, k, v = query[:, begin:end], key[:, begin:end], value[:, begin:end]
        probabilities = softmax(scaled(q, k.transpose(1, 2), width**-0.5))
        mask, scale = shape.masks.draw(probabilities.numel(), shape.rates[0])
        dropped = probabilities if mask is None else keep(probabilities, mask)
        out[begin:end] = scaled(dropped, v, scale).transpose(0, 1)
        if shape.training:
            kept.append((probabilities, dropped, scale))
    return out.view(rows, -1), kept


def attend_backward(
    d_out: torch.Tensor,
    out: torch.Tensor,
    heads_first: torch.Tensor,
    kept: Probabilities,
    shape: Shape,
) -> torch.Tensor:
    """Gradient of the rows (T, 3 H) of queries, keys and values.

    With P the probabilities, Q those after dropout and dQ the gradient of Q, that of the scores is
    Q dQ - P delta, where delta = rowsum(P dP) = rowsum(out d_out): no mask is needed.
    """
    heads, rows, width = heads_first.shape[1:]
    d_all = torch.empty_like(heads_first)
    by_head = d_out.view(rows, heads, width).transpose(0, 1)
    delta = (d_out * out).view(rows, heads, width).sum(-1).t().contiguous().unsqueeze(-1)
    for (begin, end), (probabilities, dropped, scale) in zip(shape.pieces, kept, strict=True):
        q, k, v = heads_first[:, :, begin:end]
        d_o = by_head[:, begin:end].contiguous()
        if scale != 1:
            d_o *= scale
        d_all[2, :, begin:end] = torch.bmm(dropped.transpose(1, 2), d_o)
        d_scores = torch.bmm(d_o, v.transpose(1, 2)).mul_(dropped)
        d_scores.sub_(probabilities * delta[:, begin:end])
        d_all[0, :, begin:end] = scaled(d_scores, k, width**-0.5)
        d_all[1, :, begin:end] = scaled(d_scores.transpose(1, 2), q, width**-0.5)
    return join_heads(d_all)


def scaled(left: torch.Tensor, right: torch.Tensor, scale: float) -> torch.Tensor:
    """scale * left @ right, batched; the product itself applies the scale."""
    if scale == 1:
        return torch.bmm(left, right)
    nothing = left.new_empty(1).expand(len(left), left.shape[1], right.shape[2])
    return torch.baddbmm(nothing, left, right, beta=0, alpha=scale)


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Over the last axis. torch's for bf16 takes twice as long as its way over fp32."""
    if scores.dtype == torch.bfloat16:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, -1)


def bounds(lengths: Sequence[int]) -> tuple[int, ...]:
    """First row of each sequence and the number of rows.

    >>> bounds([3, 2])
    (0, 3, 5)
    """
    found = [0]
    for length in lengths:
        found.append(found[-1] + length)
    return tuple(found)
