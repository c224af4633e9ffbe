"""TRADES, MART, GAIR and their MCE variants against literal transcriptions, in
float64, gradients included."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import mrboost
from commands import same
from mrboost import models, recipes
from mrboost.attacks import PGD, Gaussian, Uniform
from mrboost.data import CutMix, Dataset, Mixed, Split
from mrboost.errors import InputError
from mrboost.losses import Smoothed, cross_entropy, margin_cross_entropy
from mrboost.recipes import AWP, Exp, OnPairs, PerInit
from mrboost.recipes.samplers import All, Diverge, Geometry, Learner, Sample, Turn

# The paper's appendix, one example and one class at a time. g: logits of the clean image, h:
# of the perturbed one.


def softmax(g: Tensor) -> list[Tensor]:
    total = sum(g[j].exp() for j in range(len(g)))
    return [g[j].exp() / total for j in range(len(g))]


def ce(g: Tensor, y: int) -> Tensor:
    return -softmax(g)[y].log()


def mce_a(g: Tensor, y: int) -> Tensor:
    others = [j for j in range(len(g)) if j != y]
    return sum(ce(g, y) + ce(-g, j) for j in others) / (len(g) - 1)


def kl(g: Tensor, h: Tensor) -> Tensor:
    p, q = softmax(g), softmax(h)
    return sum(p[j] * (p[j] / q[j]).log() for j in range(len(g)))


def bce(h: Tensor, y: int) -> Tensor:
    p = softmax(h)
    rival = max((j for j in range(len(h)) if j != y), key=lambda j: p[j].item())
    return -p[y].log() - (1 - p[rival]).log()


def smoothed(loss: Callable[[Tensor, int], Tensor], g: Tensor, y: int) -> Tensor:
    return 0.9 * loss(g, y) + sum(0.1 / len(g) * loss(g, j) for j in range(len(g)))


LITERAL: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "at": lambda g, h, y: ce(h, y),
    "at-mce": lambda g, h, y: mce_a(h, y),
    "trades": lambda g, h, y: ce(g, y) + 6 * kl(g, h),
    "trades-mce": lambda g, h, y: mce_a(g, y) + 6 * (kl(g, h) + kl(-g, -h)),
    "mart": lambda g, h, y: bce(h, y) + 5 * kl(g, h) * (1 - softmax(g)[y]),
    "mart-mce": lambda g, h, y: (
        mce_a(g, y) + 1 * (kl(g, h) * (1 - softmax(g)[y]) + kl(-g, -h) * (1 - softmax(-g)[y]))
    ),
    "mart-mce-perturbed": lambda g, h, y: (
        mce_a(h, y) + 1 * (kl(g, h) * (1 - softmax(g)[y]) + kl(-g, -h) * (1 - softmax(-g)[y]))
    ),
    "gair": lambda g, h, y: ce(h, y),
    "gair-mce": lambda g, h, y: mce_a(h, y),
    "awp": lambda g, h, y: ce(h, y),
    "awp-mce": lambda g, h, y: mce_a(h, y),
    "strong": lambda g, h, y: mce_a(h, y),
    "mrboost-strong": lambda g, h, y: mce_a(h, y),
    "at-mce, smoothed": lambda g, h, y: smoothed(mce_a, h, y),
}


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("name", LITERAL)
@pytest.mark.parametrize("mixing", [False, True])
def test_the_objective_is_the_papers(name: str, classes: int, mixing: bool) -> None:
    """The model is the identity, so that images are logits; with CutMix a loss is the mean
    over the two labels."""
    generator = torch.Generator().manual_seed(classes)
    clean, x = (
        3 * torch.randn(6, classes, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    clean.requires_grad_(True)
    x.requires_grad_(True)
    y, second = torch.arange(6) % classes, torch.arange(1, 7) % classes
    share = torch.rand(6, generator=generator, dtype=torch.float64)
    sample = Sample(clean=clean, x=x, y=y, mixed=Mixed(second, share) if mixing else None)
    objective = recipes.get(name.partition(",")[0]).objective
    if "smoothed" in name:
        objective = replace(objective, loss=Smoothed(objective.loss))
    losses, logits = objective(lambda images: images, sample)
    expected = torch.stack([LITERAL[name](clean[i], x[i], int(y[i])) for i in range(6)])
    if mixing:
        twin = torch.stack([LITERAL[name](clean[i], x[i], int(second[i])) for i in range(6)])
        expected = share * expected + (1 - share) * twin
    assert torch.equal(logits, x)
    torch.testing.assert_close(losses, expected)
    slopes = torch.arange(1.0, 7.0, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(
            (losses * slopes).sum(), (clean, x), allow_unused=True, materialize_grads=True
        ),
        torch.autograd.grad(
            (expected * slopes).sum(), (clean, x), allow_unused=True, materialize_grads=True
        ),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


# The attacks, step by step.


@pytest.fixture
def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 4)]
        return nn.Sequential(*layers).double().train()


@pytest.fixture
def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(9, 1, 4, 4, generator=generator, dtype=torch.float64), torch.arange(9) % 4


def literal_pgd(
    network: nn.Module, x: Tensor, start: Tensor, objective: Callable[[Tensor], Tensor]
) -> Tensor:
    network.eval()
    x_adv = (x + start).clamp(x - 0.3, x + 0.3).clamp(0, 1)
    for _ in range(10):
        x_adv = x_adv.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(objective(network(x_adv)), x_adv)
        x_adv = (x_adv.detach() + 0.075 * gradient.sign()).clamp(x - 0.3, x + 0.3).clamp(0, 1)
    network.train()
    return x_adv


@pytest.mark.parametrize("name", ["trades", "trades-mce"])
def test_trades_attacks_the_divergence_from_beside_the_image(name: str, network, images) -> None:
    x, y = images
    recipe = recipes.get(name)
    turn = Turn(
        PGD(0.3, steps=10, start=recipe.start), network, [], x, y, torch.Generator().manual_seed(5)
    )
    found = recipe.sampler(turn)
    network.eval()
    clean = network(x).detach()
    start = 0.001 * torch.randn(
        x.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )

    def divergence(logits: Tensor) -> Tensor:
        total = F.kl_div(logits.log_softmax(1), clean.softmax(1), reduction="sum")
        if name != "trades":
            total = total + F.kl_div((-logits).log_softmax(1), (-clean).softmax(1), reduction="sum")
        return total

    torch.testing.assert_close(found.x, literal_pgd(network, x, start, divergence))
    assert found.weight is None


@pytest.mark.parametrize("name", ["mart", "mart-mce", "mart-mce-perturbed"])
def test_mart_attacks_the_cross_entropy_from_beside_the_image(name: str) -> None:
    recipe = recipes.get(name)
    assert (recipe.sampler, recipe.start) == (Learner(), Gaussian(0.001))


@pytest.mark.parametrize("name", ["gair", "gair-mce"])
@pytest.mark.parametrize(("steps", "bias"), [(10, 0.0), (4, 0.0), (10, -1.0)])
def test_gair_counts_the_steps_that_an_example_withstands(
    name: str, steps: int, bias: float, network, images
) -> None:
    x, y = images
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(3)  # so that some examples fall at once, some later and some never
    network.eval()
    y = network(x).argmax(dim=1)
    y[0] = (y[0] + 1) % 4
    kappa = [0] * 9

    def draw(progress: float) -> Sample:
        generator = torch.Generator().manual_seed(5)
        turn = Turn(PGD(0.3, steps=steps), network, [], x, y, generator, torch.tensor(progress))
        sampler = recipes.get(name).sampler
        assert sampler.bias == 0, "the paper's lambda"
        return replace(sampler, bias=bias)(turn)

    x_adv = (x + Uniform()(x, PGD(0.3).threat, torch.Generator().manual_seed(5))).clamp(0, 1)
    for _ in range(steps):
        x_adv = x_adv.detach().requires_grad_(True)
        logits = network(x_adv)
        for i in range(9):
            kappa[i] += int(logits[i].argmax() == y[i])
        loss = margin_cross_entropy if name == "gair-mce" else F.cross_entropy
        (gradient,) = torch.autograd.grad(loss(logits, y, reduction="sum"), x_adv)
        x_adv = (x_adv.detach() + 0.075 * gradient.sign()).clamp(x - 0.3, x + 0.3).clamp(0, 1)
    assert len(set(kappa)) > 2, "the test lost its hold"
    half = steps // 2
    weights = [1 / (1 + 2.718281828459045 ** -(bias + (half - k) * 5 / half)) for k in kappa]
    expected = torch.tensor([w * 9 / sum(weights) for w in weights])
    late, early = draw(0.5), draw(0.499)
    torch.testing.assert_close(late.x, x_adv)
    torch.testing.assert_close(late.weight, expected)
    torch.testing.assert_close(early.weight, torch.ones(9))
    assert late.mean(torch.arange(9.0)) == pytest.approx(
        (expected * torch.arange(9.0)).mean().item()
    )


def test_joint_samplers_attack_the_ensemble(network, images) -> None:
    past, x, y = [models.build("cnn-digits", (1, 4, 4), 4).double().eval()], *images
    attack = PGD(0.3, steps=5, start=Gaussian())

    def draw(sampler: Diverge | Geometry, members: list[nn.Module]) -> Tensor:
        return sampler(Turn(attack, network, members, x, y, torch.Generator().manual_seed(0))).x

    for alone, together in ((Diverge(), Diverge(joint=True)), (Geometry(), Geometry(joint=True))):
        assert torch.equal(draw(alone, past), draw(alone, []))
        assert torch.equal(draw(together, []), draw(alone, []))
        assert not torch.equal(draw(together, past), draw(alone, past))


def test_the_attack_sees_both_labels_of_mixed_images(network, images) -> None:
    x, y = images
    mixed = Mixed(y.roll(1), torch.linspace(0.1, 1, 9, dtype=torch.float64))
    attack = PGD(0.3, steps=10, start=Gaussian())
    found = Learner()(
        Turn(attack, network, [], x, y, torch.Generator().manual_seed(5), mixed=mixed)
    )
    start = 0.001 * torch.randn(
        x.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )

    def both(logits: Tensor) -> Tensor:
        one, two = (F.cross_entropy(logits, label, reduction="none") for label in (y, mixed.second))
        return (mixed.share * one + (1 - mixed.share) * two).sum()

    torch.testing.assert_close(found.x, literal_pgd(network, x, start, both))
    assert found.mixed is mixed
    counted = Geometry(begin=0.0)(
        Turn(attack, network, [], x, y, torch.Generator().manual_seed(5), mixed=mixed)
    )
    plain = Geometry(begin=0.0)(Turn(attack, network, [], x, y, torch.Generator().manual_seed(5)))
    assert counted.weight is not None
    assert plain.weight is not None
    assert counted.weight.min() > plain.weight.min() / 5, "kappa never exceeds the number of steps"


JOINT_TRADES, JOINT_GAIR, JOINT_MART = (
    replace(recipe, name=f"joint-{recipe.name}", sampler=sampler, init=PerInit())
    for recipe, sampler in (
        (recipes.TRADES, Diverge(joint=True)),
        (recipes.GAIR, Geometry(joint=True)),
        (recipes.MART, All(cross_entropy)),
    )
)
DISTINCT = {
    (recipe.sampler, recipe.objective, recipe.scope): recipe
    for recipe in (*recipes.RECIPES.values(), JOINT_TRADES, JOINT_GAIR, JOINT_MART)
    if not isinstance(recipe.sampler, Exp)  # needs an operation that fake tensors lack
}


@pytest.mark.parametrize("recipe", DISTINCT.values(), ids=lambda recipe: recipe.name)
def test_no_part_of_a_step_looks_at_values_on_the_host(recipe: recipes.Recipe) -> None:
    """Fake tensors have shapes but no values: .item(), branches on tensors and masks as
    indices fail on them."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        learner, past = (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4)) for _ in range(2)
        )
        x, y = torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
        generator, progress = torch.Generator(), torch.zeros(())
        mixed = None
        if not isinstance(recipe.objective, OnPairs):
            x, mixed = CutMix()(x, y, generator)
        attack = PGD(0.1, steps=2, start=recipe.start)
        sample = recipe.sampler(Turn(attack, learner, [past], x, y, generator, progress, mixed))

        def loss_of(model: Callable[[Tensor], Tensor]) -> Tensor:
            return sample.mean(recipe.objective(recipe.scope(model, [past]), sample)[0])

        with AWP().shifted(learner, loss_of, progress):
            loss_of(learner).backward()
        assert all(p.grad is not None for p in learner.parameters())


# Composition.


EVERYTHING = {"awp": 0.01, "smoothing": 0.1, "cutmix": 0.5, "ema": 0.9, "clip": 1.0}
EVERYTHING |= {"schedule": "one-cycle"}


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (recipes.ROBBOOST, EVERYTHING),
        (JOINT_GAIR, EVERYTHING | {"awp": 0.005}),
        (recipes.get("mrboost-max"), {"awp": 0.01, "ema": 0.9}),
    ],
    ids=lambda value: value.name if isinstance(value, recipes.Recipe) else "",
)
def test_parts_compose_and_a_crash_resumes_to_the_same_bits(
    recipe, options, tiny: Dataset, tmp_path, monkeypatch
) -> None:
    def train(folder: str, **more: bool) -> nn.Module:
        return mrboost.boost(
            recipe, tiny, rounds=2, out=tmp_path / folder, device="cpu", **options, **more
        )

    reference = train("whole")
    with monkeypatch.context() as patch:
        save, saved = mrboost.training.state.FitState.save, []

        def dying(self, run, round_) -> None:
            save(self, run, round_)
            saved.append(round_)
            if saved == [1, 1, 2]:
                raise KeyboardInterrupt

        patch.setattr(mrboost.training.state.FitState, "save", dying)
        with pytest.raises(KeyboardInterrupt):
            train("cut")
    assert same(train("cut", resume=True), reference)


def test_every_option_changes_the_result(tiny: Dataset) -> None:
    def train(**options: object) -> nn.Module:
        return mrboost.boost("at", tiny, epochs=1, device="cpu", fast="off", **options)

    plain = train()
    assert same(train(), plain)
    for name, value in (EVERYTHING | {"clip": 0.1}).items():
        assert not same(train(**{name: value}), plain), name


def test_a_step_trains_on_mixed_images_with_labels_by_area(tiny: Dataset) -> None:
    """The grey of an image is its label: so each pixel that the adversary meets says to
    which label it belongs."""
    turns: list[Turn] = []

    @dataclass(frozen=True)
    class Looking(Learner):
        def __call__(self, turn: Turn) -> Sample:
            turns.append(turn)
            return super().__call__(turn)

    grey = (tiny.train.y / 2)[:, None, None, None].expand(len(tiny.train), *tiny.shape).contiguous()
    data = replace(tiny, train=Split(grey, tiny.train.y))
    mrboost.boost(
        replace(recipes.AT, sampler=Looking()),
        data,
        epochs=1,
        cutmix=1.0,
        padding=0,
        flip=False,
        device="cpu",
    )
    turns = turns[1:]  # the first is a trial, before training
    for turn in turns:
        assert turn.mixed is not None
        share, one_hot = turn.mixed.share[:, None], torch.eye(3)
        areas = one_hot[(2 * turn.x).long()].flatten(1, -2).mean(dim=1)
        torch.testing.assert_close(
            areas, share * one_hot[turn.y] + (1 - share) * one_hot[turn.mixed.second]
        )
    assert any(
        (turn.y != turn.mixed.second).any() and turn.mixed.share.min() < 0.9
        for turn in turns
        if turn.mixed
    )


def test_options_are_parts(tiny: Dataset, tmp_path) -> None:
    mrboost.boost("trades", tiny, epochs=1, out=tmp_path / "run", device="cpu", **EVERYTHING)
    recipe = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert recipe["awp"] == {"part": "AWP", "gamma": 0.01, "begin": 0.0}
    assert recipe["objective"]["loss"] == {
        "part": "Smoothed",
        "loss": "cross_entropy",
        "share": 0.1,
    }
    assert recipe["cutmix"] == {"part": "CutMix", "probability": 0.5}
    resolve = mrboost.recipes.config.resolve
    smooth = resolve(recipes.STRONG, tiny, smoothing=0.1, cutmix=0.5).recipe
    plain = resolve(smooth, tiny, awp=0, smoothing=0, cutmix=0).recipe
    assert (plain.awp, plain.cutmix, plain.objective) == (None, None, recipes.AWP_MCE.objective)
    assert resolve(smooth, tiny, smoothing=0.2).recipe.objective.loss.share == 0.2
    silu = replace(recipes.STRONG, model="{}-silu")
    assert (
        resolve(silu, tiny).model
        == resolve(silu, tiny, model="cnn-digits-silu").model
        == "cnn-digits-silu"
    )
    for options, message in (
        ({"awp": 1.0}, "between 0 and 1, got 1.0"),
        ({"smoothing": -0.1}, "between 0 and 1, got -0.1"),
        ({"cutmix": 1.5}, r"\(0, 1\], got 1.5"),
    ):
        with pytest.raises(InputError, match=message):
            resolve(recipes.AT, tiny, **options)
    with pytest.raises(
        InputError, match="two labels, and recipe 'mrboost-rnd' chooses one false label"
    ):
        resolve(recipes.get("mrboost-rnd"), tiny, cutmix=0.5)
    with pytest.raises(InputError, match="'mrboost-max' trains on pairs"):
        resolve(recipes.get("mrboost-max"), tiny, smoothing=0.1)


def test_strong_is_what_was_measured_under_other_names(digits: Dataset) -> None:
    """docs/results/boosting-resnet18.md trained it as awp-mce with options, and as the
    first round of mrboost."""
    options = {"model": "resnet18", "batch_size": 256, "lr": 0.4, "epochs": 2000}
    resolve = mrboost.recipes.config.resolve
    strong = resolve(recipes.STRONG, digits, **options).recipe
    for name in ("awp-mce", "mrboost"):
        other = resolve(
            recipes.get(name), digits, awp=0.005, ema=0.999, schedule="one-cycle", **options
        ).recipe
        parts = "objective steps start schedule momentum weight_decay ema clip awp cutmix"
        for part in parts.split():
            assert getattr(strong, part) == getattr(other, part)
    assert strong.sampler.loss == recipes.MRBOOST.sampler.loss, (
        "with no past members the ensemble is the learner"
    )


def test_a_recipes_average_can_be_changed_and_taken_off(digits: Dataset) -> None:
    resolve = mrboost.recipes.config.resolve
    assert resolve(recipes.STRONG, digits).recipe.ema == 0.999
    assert resolve(recipes.STRONG, digits, ema=0.99).recipe.ema == 0.99
    assert resolve(recipes.STRONG, digits, ema=0).recipe.ema is None
    with pytest.raises(
        InputError, match="later_epochs is of the rounds after the first, and strong has one"
    ):
        resolve(recipes.STRONG, digits, later_epochs=3)
