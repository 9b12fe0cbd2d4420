"""One client's steps in PyTorch: Flipout by hand, or the layers of bayesian-torch.

The models and the loss are those of `models.py`. By hand each kernel is Gaussian and each bias a point, and signs are
drawn for each example and channel, as Flipout has it. bayesian-torch has Gaussian biases besides, draws a sign for each
pixel, and takes the mean of a layer's KL instead of the sum, which costs the same.
"""

from __future__ import annotations

import argparse
import itertools
import math
from typing import Any

import bayesian_torch.layers as bayesian
import blocks
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Flipout(nn.Module):
    """f(x) = W_mean x + b_out * ((sigma eps) (b_in * x)), with a linear map or a convolution for the products."""

    def __init__(self, shape: tuple[int, ...], bias: bool, **options: Any) -> None:
        super().__init__()
        self.mean = nn.Parameter(nn.init.kaiming_normal_(torch.empty(shape)))
        self.log_stddev = nn.Parameter(torch.full(shape, math.log(blocks.INITIAL_STDDEV)))
        self.bias = nn.Parameter(torch.zeros(shape[0])) if bias else None
        self._options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = F.linear if self.mean.dim() == 2 else F.conv2d
        between = [1] * (x.dim() - 2)
        signs_in, signs_out = (_signs(len(x), self.mean.shape[axis], between) for axis in (1, 0))
        perturbation = torch.exp(self.log_stddev) * torch.randn_like(self.mean)
        perturbed = product(x * signs_in, perturbation, **self._options)
        return torch.addcmul(product(x, self.mean, self.bias, **self._options), perturbed, signs_out)

    def kl(self) -> torch.Tensor:
        variance = torch.exp(2 * self.log_stddev)
        ratio = (variance + self.mean.square()) / (2 * blocks.PRIOR_STDDEV**2)
        return (math.log(blocks.PRIOR_STDDEV) - self.log_stddev + ratio - 0.5).sum()


def _signs(examples: int, channels: int, between: list[int]) -> torch.Tensor:
    return torch.randint(0, 2, (examples, channels, *between)).mul_(2).sub_(1).float()


class ByHand:
    """The layers of the models."""

    def convolution(self, inputs: int, outputs: int, size: int, bias: bool, stride: int = 1, padding: int = 0) -> Any:
        return Flipout((outputs, inputs, size, size), bias, stride=stride, padding=padding)

    def dense(self, inputs: int, outputs: int) -> Any:
        return Flipout((outputs, inputs), bias=True)

    @staticmethod
    def kl(model: nn.Module) -> torch.Tensor:
        return sum(layer.kl() for layer in model.modules() if isinstance(layer, Flipout))


class ByLibrary:
    """The same with bayesian-torch; its argument `prior_variance` is a standard deviation."""

    def __init__(self) -> None:
        untransformed = math.log(math.expm1(blocks.INITIAL_STDDEV))
        self._options = {"prior_variance": blocks.PRIOR_STDDEV, "posterior_rho_init": untransformed}

    def convolution(self, inputs: int, outputs: int, size: int, bias: bool, stride: int = 1, padding: int = 0) -> Any:
        layer = bayesian.Conv2dFlipout(
            inputs, outputs, size, stride=stride, padding=padding, bias=bias, **self._options
        )
        nn.init.kaiming_normal_(layer.mu_kernel)
        return _Alone(layer)

    def dense(self, inputs: int, outputs: int) -> Any:
        layer = bayesian.LinearFlipout(inputs, outputs, **self._options)
        nn.init.kaiming_normal_(layer.mu_weight)
        return _Alone(layer)

    @staticmethod
    def kl(model: nn.Module) -> torch.Tensor:
        return sum(layer.kl for layer in model.modules() if isinstance(layer, _Alone))


class _Alone(nn.Module):
    """A layer that returns its outputs, and keeps the KL that comes with them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, self.kl = self._layer(x)
        return outputs


def lenet(make: Any) -> nn.Module:
    return nn.Sequential(
        *(make.convolution(1, 6, 5, bias=True, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(make.convolution(6, 16, 5, bias=True), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(make.dense(400, 120), nn.ReLU(), make.dense(120, 84), nn.ReLU(), make.dense(84, 10)),
    )


class Block(nn.Module):
    """Two convolutions and a shortcut; where the images shrink, every second pixel and zeros for the new channels."""

    def __init__(self, make: Any, inputs: int, outputs: int) -> None:
        super().__init__()
        self._new = (outputs - inputs) // 2
        stride = 1 if inputs == outputs else 2
        self._first = make.convolution(inputs, outputs, 3, bias=False, stride=stride, padding=1)
        self._second = make.convolution(outputs, outputs, 3, bias=False, padding=1)
        self._norms = nn.ModuleList(nn.BatchNorm2d(outputs, eps=1e-3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = F.pad(x[:, :, ::2, ::2], [0, 0, 0, 0, self._new, self._new]) if self._new else x
        x = F.relu(self._norms[0](self._first(x)))
        return F.relu(self._norms[1](self._second(x)) + shortcut)


def resnet20(make: Any) -> nn.Module:
    widths = [16] * 4 + [32] * 3 + [64] * 3
    first = (make.convolution(3, 16, 3, bias=False, padding=1), nn.BatchNorm2d(16, eps=1e-3), nn.ReLU())
    rest = (Block(make, inputs, outputs) for inputs, outputs in itertools.pairwise(widths))
    return nn.Sequential(*first, *rest, nn.AdaptiveAvgPool2d(1), nn.Flatten(), make.dense(64, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="features uint8 [N, H, W, C], labels [N]: one client's")
    parser.add_argument("--model", choices=["lenet", "resnet20"], default="lenet")
    parser.add_argument("--library", action="store_true", help="bayesian-torch's layers instead of those by hand")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    make = ByLibrary() if options.library else ByHand()
    model = {"lenet": lenet, "resnet20": resnet20}[options.model](make).train()
    arrays = np.load(options.data)
    features = torch.tensor(arrays["features"]).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor(arrays["labels"]).long()
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
        features = features.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), blocks.LEARNING_RATE, eps=1e-7, fused=True)

    def block() -> float:
        total = 0.0
        for rows in torch.randperm(len(labels)).split(blocks.BATCH):
            nll = F.cross_entropy(model(features[rows].float() / 255), labels[rows])
            optimizer.zero_grad(set_to_none=True)
            (nll + make.kl(model) / len(labels)).backward()
            optimizer.step()
            total += nll.detach()
        return float(total) * blocks.BATCH / len(labels)

    blocks.serve(block, len(labels) // blocks.BATCH)


if __name__ == "__main__":
    main()
