"""Autograd for kernels that have no backward yet: forward runs, `.backward()` says what works."""

import torch

from .errors import NotYetError


class Forward(torch.autograd.Function):
    """`Forward.apply(call, *tensors)`: the outputs of `call(*tensors)`, attached to the graph."""

    @staticmethod
    def forward(ctx, call, *tensors):
        return call(*tensors)

    @staticmethod
    def backward(ctx, *gradients):
        raise NotYetError(
            "fa4c.attention has no backward pass yet",
            why="gradients are not derived yet; the forward pass is right",
            fix="wrap the call in torch.no_grad(), detach the inputs, or use torch's scaled_dot_product_attention for training",
        )
