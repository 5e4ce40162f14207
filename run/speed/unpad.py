"""Batches without padding, for encoders of transformers.

A batch of SQuAD's questions padded to 384 tokens is half padding, which costs as much as words do. Here the
base model's forward takes the true tokens of the batch as one flat row through embeddings and layers, and
puts the result back into the padded shape, so heads, losses and scripts stay as they are.

What changes: nothing in exact arithmetic, but for hidden states at padding, which are 0. Measured with
MiniLM-L6 (mean 182 tokens of 384): see docs/speed.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from .dropout import CheapDropout, Masks
from .encoder import GELU, GRAIN, EncoderLayer, Shape, bounds


class Unsupported(Exception):
    """Why a model cannot run without padding, in one line."""


@dataclass(frozen=True)
class Layer:
    """The modules of one layer, whatever its model calls them. `weights` in the order of WEIGHTS."""

    linear: tuple[nn.Linear, ...]  # query, key, value, output, up, down
    norms: tuple[nn.LayerNorm, nn.LayerNorm]
    dropouts: tuple[nn.Dropout, nn.Dropout, nn.Dropout]  # of probabilities, attention's output, MLP's output

    def weights(self) -> tuple[torch.Tensor, ...]:
        query, key, value, output, up, down = self.linear
        modules = (query, key, value, output, self.norms[0], up, down, self.norms[1])
        return tuple(tensor for module in modules for tensor in (module.weight, module.bias))

    def shape(self, bounds: tuple[int, ...], heads: int, gelu: str) -> Shape:
        training = torch.is_grad_enabled()
        return Shape(
            bounds,
            heads,
            gelu,
            (self.norms[0].eps, self.norms[1].eps),
            tuple(module.p if module.training else 0.0 for module in self.dropouts),
            Masks(cheap=all(isinstance(module, CheapDropout) for module in self.dropouts)),
            training,
        )


def bert_layers(base: nn.Module) -> list[Layer]:
    return [
        Layer(
            (
                *(layer.attention.self.query, layer.attention.self.key, layer.attention.self.value),
                *(layer.attention.output.dense, layer.intermediate.dense, layer.output.dense),
            ),
            (layer.attention.output.LayerNorm, layer.output.LayerNorm),
            (layer.attention.self.dropout, layer.attention.output.dropout, layer.output.dropout),
        )
        for layer in base.encoder.layer
    ]


def distilbert_layers(base: nn.Module) -> list[Layer]:
    """DistilBERT has no dropout on its attention's output."""
    return [
        Layer(
            (
                *(layer.attention.q_lin, layer.attention.k_lin, layer.attention.v_lin),
                *(layer.attention.out_lin, layer.ffn.lin1, layer.ffn.lin2),
            ),
            (layer.sa_layer_norm, layer.output_layer_norm),
            (layer.attention.dropout, CheapDropout(0.0), layer.ffn.dropout),
        )
        for layer in base.transformer.layer
    ]


LAYERS: dict[str, Callable[[nn.Module], list[Layer]]] = {
    "bert": bert_layers,
    "roberta": bert_layers,
    "xlm-roberta": bert_layers,
    "distilbert": distilbert_layers,
}
"""Kinds of model (config.model_type) and where their layers keep what."""


def unpadded(model: nn.Module, say: Callable[[str], None] | None = None) -> nn.Module:
    """The same model, computing the true tokens of a batch only.

    A model that cannot is left as it is, padded, and `say` is told why in one line (default: stderr).
    """
    say = say or partial(print, file=sys.stderr)
    try:
        install(model)
    except Unsupported as error:
        say(f"batches keep their padding: {error}")
    return model


def install(model: nn.Module) -> None:
    """Replace the base model's forward. Raises Unsupported."""
    base = getattr(model, "base_model", model)
    config = getattr(base, "config", None)
    kind = getattr(config, "model_type", type(base).__name__)
    if kind not in LAYERS:
        raise Unsupported(f"{kind} is none of {', '.join(sorted(LAYERS))}")
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise Unsupported(f"this {kind} is a decoder")
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        raise Unsupported(f"{config.position_embedding_type} positions are not known here")
    activation = getattr(config, "hidden_act", None) or getattr(config, "activation", None)
    if activation not in GELU:
        raise Unsupported(f"activation {activation} is none of {', '.join(GELU)}")
    base.forward = Unpadded(base, LAYERS[kind], base.forward)


class Unpadded:
    """The forward of a base model, without padding where it can be, else the stock one."""

    def __init__(
        self,
        base: nn.Module,
        find_layers: Callable[[nn.Module], list[Layer]],
        stock: Callable[..., object],
    ):
        self.base, self.find_layers, self.stock = base, find_layers, stock
        config = base.config
        self.heads = getattr(config, "num_attention_heads", None) or config.n_heads
        self.gelu = GELU[getattr(config, "hidden_act", None) or config.activation]

    def __call__(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **more: object,
    ):
        if input_ids is None or not self.can(attention_mask, more):
            named = {"token_type_ids": token_type_ids, "position_ids": position_ids, **more}
            given = {name: value for name, value in named.items() if value is not None}
            return self.stock(input_ids=input_ids, attention_mask=attention_mask, **given)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if position_ids is None:
            position_ids = positions(self.base.embeddings, input_ids)
        is_token = attention_mask != 0
        flat = {
            "input_ids": input_ids[is_token][None],
            "position_ids": position_ids.expand_as(input_ids)[is_token][None],
        }
        if hasattr(self.base.embeddings, "token_type_embeddings"):
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            flat["token_type_ids"] = types[is_token][None]
        rows = self.encode(self.base.embeddings(**flat)[0], is_token.sum(1).tolist())
        return self.output(padded(rows, is_token))

    def can(self, attention_mask: torch.Tensor | None, more: dict[str, object]) -> bool:
        """Whether only what is computed here is asked for."""
        config = self.base.config
        asked = any(
            more.get(name) or (more.get(name) is None and getattr(config, name, False))
            for name in ("output_attentions", "output_hidden_states")
        )
        others = [name for name, value in more.items() if value is not None and name not in HARMLESS]
        is_flat = attention_mask is None or attention_mask.dim() == 2
        return (
            is_flat and not asked and not others and not getattr(self.base, "gradient_checkpointing", False)
        )

    def encode(self, rows: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """(T, H) through all layers, in autocast's type where that is on."""
        if torch.is_autocast_enabled("cpu"):
            rows = rows.to(torch.get_autocast_dtype("cpu"))
        places, count = bounds(lengths), len(rows)
        rows = nn.functional.pad(rows, (0, 0, 0, -count % GRAIN))
        with torch.autocast("cpu", enabled=False):
            for layer in self.find_layers(self.base):
                shape = layer.shape(places, self.heads, self.gelu)
                rows = EncoderLayer.apply(rows, shape, *layer.weights())
        return rows[:count]

    def output(self, hidden: torch.Tensor):
        """What the stock forward returns."""
        from transformers.modeling_outputs import (
            BaseModelOutput,
            BaseModelOutputWithPoolingAndCrossAttentions,
        )

        if not hasattr(self.base, "pooler"):
            return BaseModelOutput(last_hidden_state=hidden)
        pooled = None if self.base.pooler is None else self.base.pooler(hidden)
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=hidden, pooler_output=pooled)


HARMLESS = ("return_dict", "use_cache", "output_attentions", "output_hidden_states")


def positions(embeddings: nn.Module, input_ids: torch.Tensor) -> torch.Tensor:
    """Position of every token as the stock model counts: by column, RoBERTa without padding."""
    count = getattr(embeddings, "create_position_ids_from_input_ids", None)
    if count is not None:
        return count(input_ids, embeddings.padding_idx)
    return torch.arange(input_ids.shape[1]).expand_as(input_ids)


def padded(rows: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
    """(T, H) -> (B, L, H), zeros where there is no token."""
    whole = rows.new_zeros(is_token.numel(), rows.shape[1])
    places = is_token.flatten().nonzero().squeeze(1)
    return whole.index_copy(0, places, rows).view(*is_token.shape, -1)
