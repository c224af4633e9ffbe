"""A look at a model: each fault raises the doubt meant and no other; sound models raise none."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from commands import checks, quantised
from mrboost import Ensemble, Mixture, evaluate
from mrboost.attacks import Square, attacked
from mrboost.evaluation.probe import probe


@pytest.fixture(scope="module")
def ensemble(undefended, model) -> Ensemble:
    return Ensemble([undefended, model[0]], [0.7, 0.3])  # in train mode itself, its members are not


@pytest.mark.parametrize("name", ["undefended", "model", "ensemble"])
@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.1), ("L2", 0.5)])
def test_silent_on_sound_models(name: str, norm: str, eps: float, images, request) -> None:
    assert probe(request.getfixturevalue(name), *images, eps=eps, norm=norm) == []


def test_silent_on_log_probabilities_and_mixtures(undefended, model, images) -> None:
    assert probe(lambda x: undefended(x).log_softmax(dim=1), *images) == []
    assert probe(Mixture([undefended, model[0]]), *images) == []


def test_silent_on_two_classes_on_an_untrained_model_and_at_eps_0(undefended, images) -> None:
    x, y = images
    two = y < 2
    assert probe(lambda x: undefended(x)[:, :2], x[two], y[two], eps=0.1) == []
    torch.manual_seed(0)
    assert (
        probe(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), x, y)
        == []
    )
    assert probe(undefended, x, y, eps=0.0) == []


@pytest.mark.parametrize("ruled_out", [-torch.inf, -1e9])
def test_silent_where_classes_are_ruled_out(ruled_out: float, undefended, images) -> None:
    def masked(x: Tensor) -> Tensor:
        logits = undefended(x)
        return torch.cat([logits, torch.full_like(logits, ruled_out)], dim=1)

    assert probe(masked, *images, eps=0.1) == []
    noisy = probe(lambda x: masked(x + 0.05 * torch.randn_like(x)), *images, eps=0.1)
    assert checks(noisy) == ["random"]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_silent_on_a_few_images(size: int, undefended, model, images) -> None:
    for network in (undefended, model):
        assert probe(network, images[0][:size], images[1][:size], eps=0.15) == []


def steep(network: nn.Module) -> Any:
    """Almost a black-and-white image; the gradient is not zero, but only of pixels
    that are nearly grey."""
    return lambda x: network(torch.sigmoid(1000 * (x - 0.5)))


class _FewPixels(torch.autograd.Function):
    """The identity, with the gradient of a random tenth of the pixels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (torch.rand_like(gradient) < 0.1)


FAULTS = {
    "rounds": (quantised, "zero-gradient", r"64 of 64 images \(6\d of them classified correctly\)"),
    "detaches": (lambda net: lambda x: net(x.detach()), "no-gradient", "gives scores alone"),
    "steep": (
        steep,
        "large-eps",
        r"eps 0.5 leaves \d\d of 6\d correctly classified images standing",
    ),
    "slow": (
        lambda net: lambda x: net(_FewPixels.apply(x)),
        "more-steps",
        r"20 steps breaks \d+ of 6\d .* \d\d more",
    ),
    "root": (lambda net: lambda x: net(x.sqrt().square()), "non-finite", "64 of 64 images"),
    "nan": (
        lambda net: lambda x: net(x) / (x[:, :1, 0, 3] > 0.1),
        "non-finite",
        r"\d+ of 64 images",
    ),
    "noise": (
        lambda net: lambda x: net(x + 0.05 * torch.randn_like(x)),
        "random",
        "Use autoattack-rand",
    ),
    "scaled": (
        lambda net: lambda x: 1e4 * net(x),
        "saturated",
        r"leads by \de\+04|leads by \d.\d+e\+04",
    ),
    "shifted": (
        lambda net: lambda x: net(x) + 1e7,
        "rounded",
        r"leads by \d+ \(median\) beside logits of 1e\+07",
    ),
    "small": (
        lambda net: lambda x: 1e-6 * net(x),
        "weak-loss",
        r"cross-entropy breaks \d+ of 6\d .* margin \d+ others",
    ),
    "chooses": (
        lambda net: lambda x: net(x) * (1 + (torch.rand(()) < 0.3)),
        "random",
        "The same images ten times",
    ),
    "softmax": (lambda net: lambda x: net(x).softmax(dim=1), "probabilities", "return the logits"),
    "expects 255 x": (lambda net: lambda x: net(x / 255), "scaling", r"(9\d|100)% as 255 x"),
    "expects 2 x - 1": (
        lambda net: lambda x: net((x + 1) / 2),
        "scaling",
        r"(9\d|100)% as 2 x - 1",
    ),
    "expects MNIST": (
        lambda net: lambda x: net(0.3081 * x + 0.1307),
        "scaling",
        r"(9\d|100)% as \(x.* of MNIST",
    ),
    "expects standardised": (
        lambda net: lambda x: net(0.376 * x + 0.305),
        "scaling",
        r"(9\d|100)% as \(x.* of these",
    ),
}


class _Behind(nn.Module):
    def __init__(self, network: nn.Module, before) -> None:
        super().__init__()
        self.network, self.before = network, before

    def forward(self, x: Tensor) -> Tensor:
        return self.network(self.before(x))


@pytest.mark.parametrize(
    ("kind", "before"), [(Ensemble, lambda x: (8 * x).round() / 8), (Mixture, lambda x: x.detach())]
)
def test_a_member_without_gradients_is_named(kind, before, undefended, model, images) -> None:
    """Those of the other members hide that it has none."""
    doubts = probe(kind([model[0], _Behind(undefended, before)]), *images, eps=0.1)
    assert checks(doubts) == ["zero-gradient"]
    assert doubts[0].message.startswith("Of member 2 of 2, on its own: For 64 of 64 images")
    assert probe(kind([model[0], _Behind(undefended, before)], [1.0, 0.0]), *images, eps=0.1) == []


class _Winners(nn.Module):
    """Of each image only the largest tenth of the activations: which they are changes
    with every small move."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return (flat * (flat >= flat.topk(flat.shape[1] // 10, dim=1).values[:, -1:])).view_as(x)


def test_a_network_of_winners_is_broken_without_its_gradients(digits, images) -> None:
    """Xiao et al. 2020, k-WTA: a defence that masks its gradients, and neither more steps nor
    grey images show it."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = nn.Sequential(
            nn.Conv2d(1, 16, 3, 1, 1),
            _Winners(),
            nn.Flatten(),
            nn.Linear(1024, 64),
            _Winners(),
            nn.Linear(64, 10),
        )
        optimizer = torch.optim.Adam(network.parameters(), 3e-3)
        for _ in range(15):
            for part in torch.randperm(len(digits.train)).split(64):
                loss = nn.functional.cross_entropy(
                    network(digits.train.images()[part]), digits.train.y[part]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    (doubt,) = probe(network.eval(), *images, eps=0.1)
    assert doubt.check == "squares"
    assert re.search(
        r"with 300 queries, .* breaks \d+ of \d\d images that PGD with restarts leaves",
        doubt.message,
    )


def test_logits_that_are_nan_within_the_ball_end_no_look(undefended, images, monkeypatch) -> None:
    def network(given: Tensor) -> Tensor:
        return undefended(given) * (1.0 if torch.is_grad_enabled() or not squares else torch.nan)

    squares: list[bool] = []

    class Watched(Square):
        def begin(self, *points: Tensor) -> dict[str, Tensor]:
            squares.append(True)
            return super().begin(*points)

    monkeypatch.setattr("mrboost.evaluation.probe.Square", Watched)
    found = {doubt.check: doubt.message for doubt in probe(network, *images, eps=0.02)}
    assert "get logits that are NaN" in found["squares"]


def test_tiny_logits_are_seen_where_few_points_fall(undefended, images) -> None:
    (doubt,) = probe(lambda x: 1e-6 * undefended(x), *images, eps=0.005)
    assert doubt.check == "weak-loss"
    assert re.search(r"differ by \S+e-0\d \(median\)", doubt.message)


def test_randomness_is_no_wrong_scaling(undefended, images) -> None:
    """A model that is right one time in two may be right on scaled images when
    it was wrong on these."""
    # The first look, after that at the shape of the logits, is a bad one
    draws = iter([0.0, 0.0, *[1.0] * 1000])
    noisy = lambda x: undefended(x) * (2 * next(draws) - 1) + torch.rand(())  # noqa: E731
    assert checks(probe(noisy, *images, eps=0.0)) == ["random"]


@pytest.mark.parametrize(("make", "check", "message"), FAULTS.values(), ids=FAULTS)
def test_each_fault_raises_the_doubt_meant(
    make, check: str, message: str, undefended, images
) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    found = probe(make(undefended), *images, eps=0.1)
    assert checks(found) == [check]
    assert re.search(message, found[0].message), found[0].message
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("make", "check"), [(quantised, "zero-gradient"), (steep, "large-eps")])
def test_masked_gradients_are_seen_in_either_norm(make, check: str, model, images) -> None:
    for norm, eps in (("Linf", 8 / 255), ("L2", 0.5)):
        found = checks(probe(make(model), *images, eps=eps, norm=norm))
        assert check in found
        assert set(found) <= {check, "more-steps"}  # a steep loss may mislead longer attacks too


def test_several_faults_are_all_told(undefended, images) -> None:
    def faulty(x: Tensor) -> Tensor:
        return undefended((4 * x + torch.rand_like(x)).round() / 4).softmax(dim=1)

    assert checks(probe(faulty, *images)) == ["random", "probabilities", "zero-gradient"]


def test_colour_images_are_tried_with_the_usual_statistics(undefended, images) -> None:
    mean, std = (
        torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    (doubt,) = probe(
        lambda x: undefended((std * x + mean)[:, :1]), images[0].expand(-1, 3, -1, -1), images[1]
    )
    assert doubt.check == "scaling"
    assert re.search(r"(9\d|100)% as \(x - mean\) / std of ImageNet", doubt.message)
    assert "CIFAR-10" in doubt.message
    assert "MNIST" not in doubt.message


def test_models_that_refuse_other_scalings_are_not_asked_again(images) -> None:
    weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))

    def strict(x: Tensor) -> Tensor:
        assert x.min() >= 0
        assert x.max() <= 1
        return x.flatten(1) @ weight

    assert probe(strict, *images) == []


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.5), nn.BatchNorm2d(1), nn.InstanceNorm2d(1, track_running_stats=True)]
)
def test_train_mode(layer: nn.Module, undefended, images) -> None:
    network = nn.Sequential(layer, undefended)
    assert undefended.training is False
    x, y = images[0][:16], images[1][:16]
    (doubt,) = probe(network, x, y, eps=0.0)
    assert doubt.check == "train-mode"
    assert network.training
    assert layer.training
    assert probe(network.eval(), x, y, eps=0.0) == []


class _Helped(nn.Module):
    """Asks for the mode where no look at ``forward`` sees it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("calls", torch.zeros(()))

    def prepared(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return x / 2 if self.training else x

    def forward(self, x: Tensor) -> Tensor:
        return self.network(self.prepared(x))


class Holder:
    """A function with a state."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __call__(self, x: Tensor) -> Tensor:
        return self.network(x)

    def predict(self, x: Tensor) -> Tensor:
        return self.network(x)


@pytest.mark.parametrize(
    "kind", ["closure", "method", "partial", "object", "global", "deeper", "bound", "nested"]
)
def test_train_mode_behind_a_function(kind: str, images, monkeypatch) -> None:
    """It is attacked in eval mode, as a network is, and left as it was."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    monkeypatch.setitem(globals(), "in_use", network)
    inner = Holder(network)
    function = {
        "closure": lambda x: network(x),
        "method": network.forward,
        "partial": functools.partial(network),
        "object": inner,
        "global": lambda x: in_use(x),  # noqa: F821
        "deeper": lambda x: inner(x),
        "bound": inner.predict,
        "nested": lambda x: (lambda z: in_use(z))(x),  # noqa: F821
    }[kind]
    result = evaluate(function, *images, "pgd-20", eps=0.1)
    assert "train-mode" in checks(result.doubts)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert all(module.training for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())
    alone = evaluate(network.eval(), *images, "pgd-20", eps=0.1)
    assert "train-mode" not in checks(alone.doubts)
    assert alone["pgd-20"].correct == result["pgd-20"].correct


def test_other_networks_are_left_alone(undefended, images, monkeypatch) -> None:
    """A global is not meant where an attribute has its name; and a function may adapt its
    network as it answers."""
    holder, other = Holder(undefended), nn.Sequential(nn.BatchNorm2d(1)).train()
    monkeypatch.setitem(globals(), "network", other)
    with attacked(lambda x: holder.network(x)):
        assert other[0].training
    assert checks(probe(lambda x: holder.network(x), *images, eps=0.1)) == []
    *_, weight, _ = undefended.parameters()

    def adapting(x: Tensor) -> Tensor:
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(undefended(x.detach()).logsumexp(dim=1).mean(), weight)
        return undefended(x) + 0 * slope.sum()

    assert (
        evaluate(adapting, images[0][:20], images[1][:20], "pgd-20", eps=0.1, check=False).n == 20
    )


def test_train_mode_that_shows_in_the_answers_only(undefended, images) -> None:
    helped = _Helped(undefended).eval()
    assert probe(helped, *images, eps=0.0) == []
    helped.training = True
    found = probe(helped, *images, eps=0.0)
    assert checks(found) == ["train-mode"]
    assert "its logits are others there" in found[0].message
    assert helped.training
    assert helped.calls == 0


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_train_mode_of_a_scripted_network(images) -> None:
    network = torch.jit.script(nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 10)))
    assert probe(network, *images, eps=0.1)[0].check == "train-mode"
    assert network.training
    assert "train-mode" not in checks(probe(network.eval(), *images, eps=0.1))


def test_layers_that_do_not_mind_the_mode_raise_no_doubt(undefended, images) -> None:
    network = nn.Sequential(nn.Identity(), undefended)
    assert network.training
    assert network[0].training
    assert probe(network, *images, eps=0.0) == []


def test_leaves_everything_as_found(images) -> None:
    torch.manual_seed(3)
    network = nn.Sequential(
        nn.Dropout(0.1), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10)
    ).train()
    network[1].eval()
    network[3].weight.requires_grad_(False)
    network[3].bias.grad = torch.ones(10)
    x, y = images[0].clone(), images[1].clone()
    modes = [module.training for module in network.modules()]
    flags = [parameter.requires_grad for parameter in network.parameters()]
    state = {name: value.clone() for name, value in network.state_dict().items()}
    random_state = torch.get_rng_state()
    first = probe(network, x, y, eps=0.1)
    assert [module.training for module in network.modules()] == modes
    assert [parameter.requires_grad for parameter in network.parameters()] == flags
    assert torch.equal(network[3].bias.grad, torch.ones(10))
    assert [p.grad is None for p in network.parameters()].count(False) == 1
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(x, images[0])
    assert torch.equal(y, images[1])
    assert probe(network, x, y, eps=0.1) == first
    with torch.inference_mode():
        assert probe(network, x.clone(), y.clone(), eps=0.1) == first


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda(images) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).cuda()
    assert probe(network, *images) == probe(network, *(tensor.cuda() for tensor in images)) == []
    assert checks(probe(lambda x: network(x.round()), *(tensor.cuda() for tensor in images))) == [
        "zero-gradient"
    ]


def test_answers_that_depend_on_the_batch(undefended, images) -> None:
    def relative(x: Tensor) -> Tensor:
        return undefended(x) - undefended(x).mean(dim=0)

    assert "batch" in [doubt.check for doubt in probe(relative, *images, eps=0.1)]
