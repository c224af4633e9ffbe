"""Quick copies of a model: they answer as it does, and are not made where tracing
would change something."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from mrboost.ensemble import Ensemble
from mrboost.models import build, registry
from mrboost.models.networks import _wide_resnet
from mrboost.speed import copies, fusing
from mrboost.speed.copies import Copy, quick, refresh
from mrboost.speed.fusing import fuse_norm_relu, fuse_relu, fuse_sums, pool_before_relu, thin_inputs


def test_no_copy_is_made_of_what_tracing_would_change(batch) -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :10] + torch.randn(10)

    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :10] if x.sum() > 0 else x.flatten(1)[:, 10:20]

    class StraightThrough(nn.Module):
        """Rounds its input, with a gradient as if it did not: tracing sees the rounding alone."""

        def forward(self, x: Tensor) -> Tensor:
            return _Round.apply(x).flatten(1)[:, :10]

    class Counting(nn.Module):
        """Answers otherwise the second time it is built into a graph."""

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :10] * (2.0 if isinstance(x, torch.fx.Proxy) else 1.0)

    for network, count, size in product(
        (Noisy(), Branching(), StraightThrough(), Counting()), (1, 100), (0, 100)
    ):
        assert quick(network, batch[0][:count], size) is network
    assert quick(torch.sin, batch[0]) is torch.sin


@pytest.mark.parametrize(
    ("draw", "often"),
    [
        (lambda: torch.rand(()).item(), 0.01),
        (random.random, 0.01),
        (np.random.rand, 0.01),
        (np.random.default_rng(0).random, 0.5),  # whose stream nobody else sees
    ],
)
def test_no_copy_is_made_of_a_model_that_draws_now_and_then(draw, often: float, batch) -> None:
    """Equal answers do not show that nothing is drawn."""

    class Rarely(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :10] * (2.0 if draw() < often else 1.0)

    for _ in range(20):
        assert isinstance(quick(Rarely(), batch[0]), Rarely)


def test_a_failing_copy_fails_in_silence(batch, capfd) -> None:
    class Counted(nn.Module):
        """Cuts its images to a size that the traced network gets wrong."""

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).narrow(1, 10**6 if isinstance(x, torch.fx.Proxy) else 0, 10)

    network = Counted()
    assert quick(network, batch[0]) is network
    assert capfd.readouterr() == ("", "")


def test_a_copy_of_an_ensemble_lies_where_its_members_do() -> None:
    """Also where they were put together afterwards, and the ensemble's weights
    have stayed on the host."""
    ensemble = Ensemble([build("cnn9", (3, 32, 32), 10).to("meta") for _ in range(2)])
    copy = copies._copy(ensemble, half=False, passes=())
    assert {tensor.device.type for tensor in (*copy.parameters(), *copy.buffers())} == {"meta"}


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return (x * 15).round() / 15

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


def test_shared_layers_are_not_folded(batch) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.one, self.two = (
                nn.Conv2d(1, 1, 3, padding=1),
                nn.BatchNorm2d(1),
                nn.BatchNorm2d(1),
            )
            self.two.running_mean.fill_(0.3)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.conv(self.one(self.conv(x)))).flatten(1)[:, :10]

    network = Shared().eval()
    copy = quick(network, batch[0])
    with torch.no_grad():
        assert copy(batch[0]) == pytest.approx(network(batch[0]), abs=1e-5)


@pytest.fixture
def small_wide_resnet(monkeypatch: pytest.MonkeyPatch) -> None:
    """WideResNet-34-10 with one block a stage and a tenth of the channels: the same
    layers in the same order."""
    shrunk = (lambda shape, classes: _wide_resnet(shape, classes, depth=10, widen=1), True)
    monkeypatch.setitem(registry._REGISTRY, "wrn-34-10", shrunk)


@pytest.mark.usefixtures("small_wide_resnet")
@pytest.mark.parametrize("name", ["resnet18", "wrn-34-10", "2xcnn9"])
def test_a_copy_follows_its_network(name: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 3, 16, 16)
    network = build(name, (3, 16, 16), 10, mean=[0.4] * 3, std=[0.2] * 3).eval()
    copy = quick(network, x)
    assert copy is not network
    with torch.no_grad():
        for key, tensor in network.state_dict().items():
            # Those of an ensemble, which are not trained
            if tensor.is_floating_point() and key != "weights":
                tensor.mul_(1 + 0.2 * torch.rand_like(tensor)).add_(0.01 * torch.rand_like(tensor))
        before = copy(x)
        refresh(copy)
        assert not torch.allclose(before, network(x), rtol=1e-3)
        assert copy(x) == pytest.approx(network(x), rel=1e-3, abs=1e-4)
    assert not any(parameter.requires_grad for parameter in copy.parameters())
    norms = [part for part in copy.modules() if isinstance(part, nn.BatchNorm2d)]
    assert len(norms) == 0 or name == "wrn-34-10"


@pytest.fixture
def spelt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on CUDA devices, with the operations of cuDNN and of compiled kernels spelt out."""

    def conv_relu(x, weight, bias, *how):
        return torch.conv2d(x, weight, bias, *how).relu()

    def conv_add_relu(x, weight, other, scale, bias, *how):
        return (torch.conv2d(x, weight, bias, *how) + scale * other).relu()

    monkeypatch.setattr(torch, "cudnn_convolution_relu", conv_relu)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", conv_add_relu)
    monkeypatch.setattr(fusing, "_compiled", lambda function: function)


@pytest.mark.usefixtures("small_wide_resnet", "spelt_out")
@pytest.mark.parametrize("name", ["resnet18", "wrn-34-10"])
def test_fused_copies_answer_and_follow(name: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 3, 16, 16)
    network = build(name, (3, 16, 16), 10).double().eval().requires_grad_(False)
    copy = Copy(network, passes=(fuse_relu, fuse_sums, fuse_norm_relu))
    kinds = {type(part).__name__ for part in copy.modules()}
    assert "_ConvRelu" in kinds
    assert ("_NormRelu" in kinds) == (name == "wrn-34-10")
    assert ("_BareConv" in kinds) == (name == "resnet18")
    assert sum(getattr(part, "twice", False) for part in copy.modules()) == (
        8 if name == "resnet18" else 0
    )
    for _ in range(2):
        answers = []
        for one in (copy, network):
            given = x.double().requires_grad_(True)
            logits = one(given)
            answers.append((logits, *torch.autograd.grad(logits.cos().sum(), given)))
        for mine, theirs in zip(*answers, strict=True):
            assert (mine - theirs).norm() < 1e-9 * theirs.norm()
        for tensor in network.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(1 + 0.2 * torch.rand_like(tensor))
        refresh(copy)


class _Joint(nn.Module):
    """Two convolutions of the same images, added."""

    def __init__(self, first: dict, second: dict) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 6, 3, padding=1)
        self.first, self.second = nn.Conv2d(6, 5, **first), nn.Conv2d(6, 5, **second)
        self.last = nn.LazyLinear(10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).relu()
        return self.last((self.first(x) + self.second(x)).relu().flatten(1))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"kernel_size": 3, "padding": 1, "stride": 2}, {"kernel_size": 1, "stride": 2}),
        (
            {"kernel_size": 3, "padding": 1, "stride": (1, 2), "bias": False},
            {"kernel_size": 1, "stride": (1, 2)},
        ),
        (
            {"kernel_size": 3, "padding": 2, "stride": 2},
            {"kernel_size": 1, "padding": 1, "stride": 2, "bias": True},
        ),
        ({"kernel_size": 1, "bias": False}, {"kernel_size": 1, "bias": False}),
        ({"kernel_size": 3, "padding": 1}, {"kernel_size": 3, "padding": 2, "dilation": 2}),
    ],
)
@pytest.mark.usefixtures("spelt_out")
def test_convolutions_that_are_added(first: dict, second: dict) -> None:
    torch.manual_seed(0)
    network, x = _Joint(first, second).double().eval(), torch.rand(4, 3, 8, 8, dtype=torch.float64)
    network(x)
    network.requires_grad_(False)
    copy = Copy(network, passes=(fuse_relu, fuse_sums))
    assert {"_BareConv", "_ConvRelu"} < {type(part).__name__ for part in copy.modules()}
    assert sum(getattr(part, "twice", False) for part in copy.modules()) == 1
    for _ in range(2):
        for mine, theirs in zip(copies._answer(copy, x), copies._answer(network, x), strict=True):
            assert (mine - theirs).norm() < 1e-9 * theirs.norm()
        for parameter in network.parameters():
            parameter.mul_(1.5)
        refresh(copy)


@pytest.mark.usefixtures("spelt_out")
def test_a_weight_that_is_computed_is_followed_or_no_copy_is_made(batch) -> None:
    torch.manual_seed(0)
    layers = [
        weight_norm(nn.Conv2d(1, 4, 3, padding=1)),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    ]
    network, x = nn.Sequential(*layers).eval().requires_grad_(False), batch[0]
    copy = quick(network, x)
    fused = Copy(network, passes=(fuse_relu, fuse_sums))
    network[0].parametrizations.weight.original0.mul_(3)
    for one in (copy, fused):
        refresh(one)
        assert one(x) == pytest.approx(network(x), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("conv", "pool"),
    [
        ({"kernel_size": 3, "padding": 1}, {"kernel_size": 2}),
        (
            {"kernel_size": 5, "stride": 2, "bias": False},
            {"kernel_size": 3, "stride": 2, "padding": 1},
        ),
        (
            {"kernel_size": (3, 2), "stride": (1, 2), "dilation": (2, 1), "padding": (0, 3)},
            {"kernel_size": (2, 3)},
        ),
        (
            {"kernel_size": 2, "padding": 1},
            {"kernel_size": 2, "stride": 1, "dilation": 2, "ceil_mode": True},
        ),
    ],
)
def test_pools_and_first_convolutions_answer_as_before(
    channels: int, conv: dict, pool: dict
) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(channels, 5, **conv), nn.ReLU(inplace=True), nn.MaxPool2d(**pool)]
    network = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10)).double().eval()
    x = torch.rand(6, channels, 13, 12, dtype=torch.float64)
    network(x)
    network.requires_grad_(False)
    copy = Copy(network, passes=(pool_before_relu, thin_inputs))
    assert {"_PoolRelu", "_ThinConv"} < {type(part).__name__ for part in copy.modules()}
    assert not any(isinstance(part, nn.ReLU) for part in copy.modules())
    for _ in range(2):
        assert (copy(x) - network(x)).norm() < 1e-9
        for mine, theirs in zip(copies._answer(copy, x), copies._answer(network, x), strict=True):
            assert (mine - theirs).norm() < 1e-9 * theirs.norm()
        network[0].weight.mul_(2)
        refresh(copy)


def test_a_weight_that_two_layers_share_is_followed_too() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1)
            self.b.weight, self.norm = self.a.weight, nn.BatchNorm2d(1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.norm(self.a(x))).flatten(1)[:, :10]

    network, x = Tied().eval(), torch.rand(4, 1, 8, 8)
    copy = quick(network, x)
    with torch.no_grad():
        network.a.weight.mul_(3)
        refresh(copy)
        assert copy(x) == pytest.approx(network(x), rel=1e-3, abs=1e-4)
