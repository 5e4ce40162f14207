"""How much work a batch is for an encoder, whatever is made of it: padding does not count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Work:
    """Of a model: how many weights each token is multiplied with, and attention's width times layers."""

    weights: int
    attention: int

    def training(self, lengths: Sequence[int]) -> float:
        """Operations of a step on sequences of so many tokens: forward once, backward twice.

        >>> Work(100, 10).training([2])
        1680.0
        """
        tokens, pairs = sum(lengths), sum(length * length for length in lengths)
        return float(6 * self.weights * tokens + 12 * self.attention * pairs)


def work_of(model: nn.Module) -> Work:
    """The linear layers that are trained, and attention as the configuration tells its size."""
    linear = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    config = getattr(model, "config", None)
    width, layers = getattr(config, "hidden_size", 0), getattr(config, "num_hidden_layers", 0)
    return Work(sum(weight.numel() for weight in linear if weight.requires_grad), width * layers)
