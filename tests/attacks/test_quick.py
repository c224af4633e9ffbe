"""Quick: which targets come first, which images a search runs on, and AutoAttack's verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from commands import checks, quantised
from mrboost import InputError, evaluate
from mrboost.attacks import APGD, AutoAttack, Quick, Square
from mrboost.attacks.autoattack import NEAR, NEAREST
from mrboost.attacks.survivors import Hooks, Points, run
from mrboost.attacks.targets import CANDIDATES, nearest_first
from mrboost.threat import ball


@pytest.fixture(scope="module")
def linear() -> nn.Module:
    """Twelve classes whose weights differ in length, so that a near boundary may belong to an
    unlikely label; biases decide between them in the middle of the box."""
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(12, 16, generator=generator, dtype=torch.float64)
    weight = draw * torch.linspace(0.3, 3, 12, dtype=torch.float64)[:, None]
    bias = torch.randn(12, generator=generator, dtype=torch.float64) - 0.5 * weight.sum(dim=1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 12)).double()
    model.load_state_dict({"1.weight": weight, "1.bias": bias})
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def middle(linear: nn.Module) -> tuple[Tensor, Tensor]:
    """Images far from the edges of the box, as the model labels them."""
    draw = torch.rand(40, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = 0.45 + 0.1 * draw
    return x, linear(x).argmax(dim=1)


def nearest(model: nn.Module, image: Tensor, candidates: Tensor, norm: str) -> tuple[int, float]:
    """The label that some image in the smallest ball gets, and its radius: for each label the
    radius at which the steepest step makes its logit the larger one."""
    weight, logits = model[1].weight, model(image[None])[0]
    label = int(logits.argmax())
    order = {"Linf": 1, "L2": 2}[norm]
    found = {
        int(j): float((logits[label] - logits[j]) / (weight[label] - weight[j]).norm(order))
        for j in candidates
    }
    first = min(found, key=lambda j: found[j])
    return first, found[first]


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_the_nearest_boundary_of_a_linear_model_comes_first(norm: str, linear, middle) -> None:
    x, _ = middle
    ranking = linear(x).argsort(dim=1, descending=True)
    order = nearest_first(linear, x, ranking, ball(norm, 0.1))
    assert torch.equal(order[:, 0], ranking[:, 0])
    assert torch.equal(order.sort(dim=1).values, ranking.sort(dim=1).values)
    assert torch.equal(order[:, CANDIDATES + 1 :], ranking[:, CANDIDATES + 1 :])
    changed = 0
    for image, mine, likely in zip(x, order, ranking, strict=True):
        first, _ = nearest(linear, image, likely[1 : CANDIDATES + 1], norm)
        assert mine[1] == first
        changed += int(likely[1] != first)
    assert changed >= 5, "the order of the logits is another"


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_one_target_is_enough_where_it_is_the_nearest(norm: str, linear, middle) -> None:
    """Just beyond the nearest boundary, where every other target is out of reach."""
    fell = {True: 0, False: 0}
    for image, label in zip(*(part[:10] for part in middle), strict=True):
        ranking = linear(image[None]).argsort(dim=1, descending=True)[0]
        _, distance = nearest(linear, image, ranking[1 : CANDIDATES + 1], norm)
        for first in fell:
            attack = APGD(1.01 * distance, norm, targets=1, steps=10, nearest=first)
            found = linear(attack(linear, image[None], label[None])).argmax(dim=1)
            fell[first] += int((found != label).item())
    assert fell[True] == 10
    assert fell[False] < 10


def test_a_sample_depends_on_the_image_alone(model, images) -> None:
    x, y = images
    search = Square(0.1, steps=1, near=0, sample=0.3)

    def drawn(x: Tensor, y: Tensor, seed: int = 0) -> Tensor:
        return search.chosen(Points.of(model, x, y, seed))

    whole = drawn(x, y)
    assert whole.double().mean().item() == pytest.approx(0.3, abs=0.08)
    assert torch.equal(drawn(x.flip(0), y.flip(0)).flip(0), whole)
    parts = [drawn(*part) for part in zip(x.split(50), y.split(50), strict=True)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(drawn(x, y, seed=1), whole)


def test_a_search_runs_on_what_is_near_and_on_a_sample(model, images) -> None:
    """Only there something falls; without either, nothing does."""
    x, y = images[0][:120], images[1][:120]
    first, all_of_them = APGD(0.2, steps=3), APGD(0.2, steps=20, targets=3)
    before = run(model, x, y, [first], 0)
    share = before.margin / before.clean_margin
    whole = run(model, x, y, [first, all_of_them], 0)
    near = run(model, x, y, [first, APGD(0.2, steps=20, targets=3, near=0.1)], 0)
    assert torch.equal(near.broken_by == 2, (whole.broken_by == 2) & (share <= 0.1).cpu())
    assert 0 < (near.broken_by == 2).sum() < (whole.broken_by == 2).sum()
    sample = APGD(0.2, steps=20, targets=3, near=0, sample=0.4)
    some = run(model, x, y, [first, sample], 0)
    assert torch.equal(some.broken_by == 2, (whole.broken_by == 2) & sample.chosen(before))
    none = run(model, x, y, [first, APGD(0.2, steps=20, targets=3, near=0)], 0)
    assert not (none.broken_by == 2).any()


def test_an_interruption_changes_nothing(model, batch) -> None:
    """Which images are near, which are drawn and what they are aimed at stays as it was."""
    batch = batch[0][:16], batch[1][:16]
    near = APGD(0.17, steps=12, targets=2, nearest=True, near=0.5)
    square = Square(0.17, steps=60, near=0, sample=0.5)
    searches = [APGD(0.17, steps=2), near, square]
    heard: list[tuple[dict[str, Tensor], int]] = []

    def hear(points: Points, stage: int) -> None:
        heard.append(({name: value.clone() for name, value in points.saved().items()}, stage))

    whole = run(model, *batch, searches, 0, hooks=Hooks(tell=hear))
    assert {0, 1, 2, 3} == {stage for _, stage in heard}
    assert any((state["order"] != whole.ranking).any() for state, _ in heard)
    for state, stage in heard[:-1]:

        def resume(points: Points, state=state, stage=stage) -> int:
            points.restore(state)
            return stage

        again = run(model, *batch, searches, 0, hooks=Hooks(resume=resume))
        assert torch.equal(again.broken_by, whole.broken_by)
        assert torch.allclose(again.adv, whole.adv, atol=1e-4)


def test_near_a_boundary_it_is_autoattack() -> None:
    """The same searches, so an image that is near has the same random numbers in them."""
    for norm in ("Linf", "L2"):
        first, *near, _, _, _ = Quick(0.1, norm).searches
        assert first.near == math.inf
        assert [one.near for one in near] == [NEAR, NEAR, NEAREST]
        mine = tuple(replace(one, near=math.inf) for one in near)
        assert mine == AutoAttack(0.1, norm, stages=3).searches


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.13), ("L2", 0.7)])
def test_it_agrees_with_autoattack(norm: str, eps: float, model, images) -> None:
    """FAB and Square break nothing of this network; each success is real."""
    x, y = images[0][:12], images[1][:12]
    found = run(model, x, y, Quick(eps, norm).searches, 0)
    full = run(model, x, y, AutoAttack(eps, norm, stages=2).searches, 0)
    assert 0.1 < full.alive.double().mean() < 0.95
    assert (found.alive != full.alive).sum() <= 1
    assert (ball(norm, eps).distance(found.adv, x) <= eps * (1 + 1e-5) + 1e-6).all()
    assert found.adv.min() >= 0
    assert found.adv.max() <= 1
    for i in (~found.alive).nonzero().squeeze(1):
        assert model(found.adv[i : i + 1]).argmax() != y[i], "alone, too"
    parts = [
        run(model, *part, Quick(eps, norm).searches, 0).broken_by
        for part in zip(x.split(6), y.split(6), strict=True)
    ]
    assert torch.equal(torch.cat(parts), found.broken_by), "whatever comes with it"


def test_large_logits_do_not_stop_it(model, batch) -> None:
    """The cross-entropy's gradient is zero there; the targeted DLR's is not."""
    plain, large = (
        evaluate(one, *(part[:10] for part in batch), "quick", eps=0.17, check=False)["quick"]
        for one in (model, lambda x: 1e4 * model(x))
    )
    assert large.accuracy == pytest.approx(plain.accuracy, abs=1 / 10)


def test_masked_gradients_are_found_out_on_the_sample(undefended, images) -> None:
    """The rounded network falls to square alone; the sample says that much fell, and counts."""
    x, y = images[0][:50], images[1][:50]
    masked = evaluate(quantised(undefended), x, y, "quick", eps=0.15)
    assert "sample" in checks(masked.doubts)
    stages = masked["quick"].stages
    assert [stage.sample for stage in stages] == [None] * 4 + [0.1] * 3
    assert stages[-1].accuracy == masked["quick"].accuracy < stages[3].accuracy
    assert "sample" not in checks(evaluate(undefended, x[:30], y[:30], "quick", eps=0.05).doubts)


def test_what_it_refuses() -> None:
    with pytest.raises(InputError, match="quick is for Linf and L2"):
        Quick(12.0, "L1")
    with pytest.raises(InputError, match=r"sample must be a share, 0 to 1, got 1\.5"):
        Quick(0.1, sample=1.5)
