"""Images, attacks and faults of models that are out of the ordinary: right figures, or one
line that says why not."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mrboost
from mrboost import InputError, Mixture
from mrboost.attacks import APGD, FGSM, PGD, AutoAttack, Square, Transfer
from mrboost.attacks.model import LOW_PRECISION
from mrboost.evaluation import robustness_curve
from mrboost.evaluation.batches import attacked_batches
from mrboost.evaluation.inputs import fitted
from mrboost.evaluation.result import robustbench_summary
from mrboost.losses import kl_divergence
from mrboost.models import BlackBox
from mrboost.speed.copies import Copy


class NanAway(nn.Module):
    """Sound on the images it was made with, NaN a little way off."""

    def __init__(self, net: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.net, self.x = net, x

    def forward(self, x: Tensor) -> Tensor:
        away = (x[:, None] - self.x).abs().flatten(2).amax(dim=2).amin(dim=1) > 0.05
        return torch.where(away[:, None], torch.nan, self.net(x))


def test_every_search_says_that_logits_are_nan_off_the_images(model, batch, search) -> None:
    x, y = batch[0][:6], model(batch[0][:6]).argmax(dim=1)
    with pytest.raises(InputError, match=r"for image \d under .* are NaN"):
        mrboost.evaluate(
            NanAway(model, x), x, y, replace(search, eps=0.3 if search.norm == "Linf" else 2.0)
        )


def test_a_transferred_search_names_the_image_by_its_number_in_all(model, batch) -> None:
    x, y = batch[0][:20], model(batch[0][:20]).argmax(dim=1)

    def broken(images: Tensor) -> Tensor:
        return model(images).masked_fill(
            (images == x[13]).flatten(1).all(dim=1)[:, None], torch.nan
        )

    with pytest.raises(InputError, match="for image 13 under Transfer are NaN"):
        mrboost.evaluate(model, x, y, {"t": Transfer(Square(0.1, steps=5), broken)}, batch_size=8)


@pytest.mark.parametrize("attack", [PGD(0.1, steps=2), APGD(0.1, steps=2)])
def test_a_source_of_examples_that_does_not_take_the_images(attack, model, batch) -> None:
    source = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10))
    with pytest.raises(
        InputError, match=r"made on: the model does not take images of shape \(N, 1, 8, 8\)"
    ):
        mrboost.evaluate(model, *batch, {"t": Transfer(attack, source)}, check=False)


@dataclass(frozen=True)
class Cheat:
    """An attack that promises a ball and returns something else."""

    result: Any
    eps: float = 0.1
    norm: str = "Linf"
    name: str = "cheat"

    def __call__(self, model: object, x: Tensor, y: Tensor, *, generator: object = None) -> Tensor:
        return self.result(x)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: torch.where(x > 0.5, x - 0.3, x), r"moved image \d out of its Linf ball of 0.1"),
        (lambda x: x + 2, r"moved image 0 out of \[0, 1\]"),
        (
            lambda x: x[:3],
            r"given images of shape \(8, 1, 8, 8\) of torch.float32 and returned \(3, 1, 8, 8\)",
        ),
        (lambda x: None, "returned NoneType"),
        (lambda x: x.double(), "returned .* of torch.float64"),
        (lambda x: x.where(x < 0.9, torch.nan), r"made NaN of image \d"),
    ],
)
def test_an_attack_is_not_believed(model, batch, result, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mrboost.evaluate(model, batch[0][:8], batch[1][:8], Cheat(result), check=False)


@pytest.mark.parametrize("dtype", LOW_PRECISION, ids=str)
def test_low_precision_does_not_widen_the_ball(dtype: torch.dtype, batch) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).to(dtype)
    fits, x = fitted(net, batch[0][:16])
    assert x.dtype == torch.float32
    for attack in (PGD(8 / 255, steps=5), Square(8 / 255, steps=20)):
        ((found, logits, _),) = attacked_batches(fits, x, batch[1][:16], attack)
        assert (found - x).abs().max() <= 8 / 255 + 1e-6
        assert torch.equal(logits, net(found.to(dtype)).float())
    assert mrboost.evaluate(net, *batch, "pgd-3", eps=0.1, check=False).n == len(batch[0])


def test_what_an_attack_cannot_do_is_said_before_another_runs(model, batch) -> None:
    ran: list[int] = []

    def first(x: Tensor) -> Tensor:
        ran.append(len(x))
        return x

    two = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    for net, labels in ((two, batch[1] % 2), (Mixture([model]), batch[1])):
        with pytest.raises(InputError, match=r"at least 3 classes|Mixture is right with"):
            mrboost.evaluate(
                net,
                batch[0],
                labels,
                {"slow": Cheat(first), "aa": AutoAttack(0.1, version="plus")},
                check=False,
            )
    assert not ran


def test_nothing_of_the_caller_is_disturbed(model, batch) -> None:
    x, y = batch[0][:8], batch[1][:8]
    state = torch.get_rng_state()
    noisy = mrboost.evaluate(
        lambda images: model(images) + 1e-6 * torch.randn(len(images), 10), x, y, "pgd-2", eps=0.1
    )
    assert torch.equal(torch.get_rng_state(), state)
    with torch.inference_mode():
        inside = mrboost.evaluate(model, x.clone(), y, ["pgd-2", Square(0.1, steps=5)], check=False)
    assert inside["clean"].correct == noisy["clean"].correct
    seen: list[type] = []
    hook = model[0][1].register_forward_hook(lambda *arguments: seen.append(type(arguments[2])))
    try:
        Copy(model[0])(x)
    finally:
        hook.remove()
    assert set(seen) <= {Tensor}


def test_images_in_other_forms(model, batch, tmp_path) -> None:
    x, y = batch
    wanted = mrboost.evaluate(model, x, y, "pgd-2", check=False)["pgd-2"].correct
    for given in (
        (TensorDataset(x, y), None),
        (x, y.int()),
        (x, nn.functional.one_hot(y).bool()),
        (x.clone().requires_grad_(True), y),
    ):
        assert mrboost.evaluate(model, *given, "pgd-2", check=False)["pgd-2"].correct == wanted
    for suffix in ("npz", "safetensors"):
        path = tmp_path / f"kept.{suffix}"
        mrboost.evaluate(
            model,
            x.clone().requires_grad_(True),
            y,
            {"file": PGD(0.1, steps=2)},
            examples=path,
            eps=0,
        )
        assert path.exists()
    assert np.load(tmp_path / "kept.npz")["file"].shape == x.shape


def test_mistakes_are_one_line(model, batch, digits, tmp_path) -> None:
    x, y = batch
    (tmp_path / "folder.npz").mkdir()
    for message, call in {
        r"shapes \(1, 8, 8\) and \(\)": lambda: mrboost.evaluate(model, x[0], y[0]),
        "eps must be a plain number, got '8/255'": lambda: PGD("8/255"),  # type: ignore[arg-type]
        r"plain number, got Fraction\(1, " r"10\): " r".*float\(eps\)": lambda: PGD(
            Fraction(1, 10)
        ),  # type: ignore[arg-type]
        "a number, got '8/255': write 8 / 255": lambda: mrboost.evaluate(model, x, y, eps="8/255"),  # type: ignore[arg-type]
        "give eps, the radius of fgsm: .* models of mrboost.load": lambda: mrboost.evaluate(
            model[0], x, y
        ),
        "a number, got True": lambda: mrboost.evaluate(model, x, y, eps=True),
        "a number, got tensor": lambda: mrboost.evaluate(model, x, y, eps=torch.ones(2)),  # type: ignore[arg-type]
        r"attack\(model, x, y\), got <class .*PGD'>: PGD\(eps\)": lambda: mrboost.evaluate(
            model, x, y, PGD
        ),  # type: ignore[arg-type]
        "at least 1, and whole, got 2.5": lambda: mrboost.evaluate(model, x, y, batch_size=2.5),  # type: ignore[arg-type]
        "it is a folder": lambda: mrboost.evaluate(model, x, y, examples=tmp_path / "folder.npz"),
        "and type torch.float32: .*Half": lambda: FGSM(0.1)(deepcopy(model).half(), x, y),
        "more than 1 value per channel": lambda: FGSM(0.1)(
            nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False)), x, y
        ),
        "needs equal shapes": lambda: APGD(0.1, loss=kl_divergence),
        "images must be a batch": lambda: mrboost.evaluate(model, np.array(0.5), y),
        r"images must be a batch \(N, …\) with N labels": lambda: mrboost.evaluate(
            model, x.numpy(), np.array(1)
        ),
        "labels cannot be read as an array": lambda: mrboost.evaluate(model, x.numpy(), {1, 2}),
        r"an nn.Module or a function, got <class": lambda: mrboost.evaluate(
            nn.Linear, x, y, eps=0.1
        ),
        "and type torch.float64": lambda: mrboost.evaluate(
            lambda images: model(images), x.double(), y, eps=0.1
        ),
        r"finite, got -0\.1": lambda: robustness_curve(model, x, y, [0.1, -0.1]),
        "finite, got nan": lambda: robustness_curve(model, x, y, [float("nan")]),
        "got list: choose two of each": lambda: mrboost.evaluate(model, [[x, y, x]]),
        "Split has labels of its own": lambda: mrboost.evaluate(model, digits.test[:64], y),
        "DataLoader has labels of its own": lambda: mrboost.evaluate(
            model, DataLoader(TensorDataset(x, y)), y
        ),
        "images cannot be read as an array": lambda: mrboost.evaluate(model, None, y),  # type: ignore[arg-type]
        "name the folder with keep=": lambda: mrboost.evaluate(model, x, y, "fgsm", resume=True),
        "got dict": lambda: mrboost.evaluate(model, [{"image": x, "label": y}]),  # type: ignore[list-item]
        "got NoneType": lambda: mrboost.evaluate(model, None),  # type: ignore[arg-type]
        r"same shape, got \(1, 8, 8\) and \(1, 4, 8\)": lambda: mrboost.evaluate(
            model, [(x, y), (x[:, :, :4], y)]
        ),
        "labels cannot be read as an array of numbers": lambda: mrboost.evaluate(
            model, x, ["cat"] * 64
        ),  # type: ignore[arg-type]
        "a function, got 'runs/a': mrboost.load": lambda: mrboost.evaluate("runs/a", x, y, eps=0.1),  # type: ignore[arg-type]
        "gave SimpleNamespace: give mrboost.models.Logits": lambda: mrboost.evaluate(
            lambda z: SimpleNamespace(logits=model(z)), x, y, eps=0.1
        ),
        "floating point, the model returned torch.int64": lambda: mrboost.evaluate(
            lambda z: model(z).long(), x, y, eps=0.1
        ),
        "layout torch.sparse_coo: return a dense one": lambda: mrboost.evaluate(
            lambda z: model(z).to_sparse(), x, y, eps=0.1
        ),
        "an array of <U6: return logits": lambda: mrboost.evaluate(
            BlackBox(lambda z: "logits", tensors=True), x, y, eps=0.1
        ),
        "examples=.* cannot be: ": lambda: mrboost.evaluate(
            model, x, y, "fgsm", eps=0.1, examples=f"{__file__}/examples.npz"
        ),
        r"at least one|are empty": lambda: robustness_curve(model, x[:0], y[:0], [0.1]),
        "takes an attack's name, .* got PGD": lambda: robustness_curve(
            model, x, y, [0.1], attack=PGD(0.1)
        ),  # type: ignore[arg-type]
        r"a number, got '0'": lambda: robustness_curve(model, x, y, "0.1"),  # type: ignore[arg-type]
        "labels must lie in 0..9": lambda: robustness_curve(model, x, y + 9, [0.1]),
    }.items():
        with pytest.raises(InputError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8), (64,), (1, 9, 9)], ids=str)
def test_images_that_do_not_fit_the_network_are_named_by_their_shape(
    shape: tuple[int, ...],
) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    x, y = torch.rand(6, *shape), torch.arange(6)
    for call in (
        lambda: mrboost.evaluate(net, x, y, "fgsm", eps=0.1),
        lambda: robustness_curve(net, x, y, [0.1]),
        lambda: APGD(0.1)(net, x, y),
        lambda: PGD(0.1)(net.double(), x.double(), y),
    ):
        with pytest.raises(
            InputError,
            match=rf"images of shape \(N, {str(shape)[1:-1].rstrip(',')}\) and type torch",
        ) as error:
            call()
        assert "\n" not in str(error.value)
        assert type(error.value.__cause__) in (RuntimeError, ValueError)
        assert str(error.value.__cause__) in str(error.value)


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("CUDA error: an illegal memory access; the size of a block"),
        torch.OutOfMemoryError("no room for this size"),
        KeyboardInterrupt("size"),
        TypeError("missing a size"),
        mrboost.errors.NanLogitsError(3),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_other_errors_of_a_model_stay_what_they_are(fault: BaseException, batch) -> None:
    def broken(images: Tensor) -> Tensor:
        raise fault

    with pytest.raises(type(fault)) as error:
        mrboost.evaluate(broken, *batch, "fgsm", eps=0.1)
    assert error.value is fault


@pytest.mark.parametrize("calls", range(2, 6))
def test_a_model_that_took_the_first_image_fails_by_its_own_fault(calls: int, model, batch) -> None:
    """Its error is not taken for one on the shape of the images, wherever it comes after the two
    looks at that image."""
    fault, left = RuntimeError("the size of tensor a must match"), [calls]

    def broken(images: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise fault
        return model(images)

    with pytest.raises(RuntimeError, match="size of tensor a") as error:
        mrboost.evaluate(broken, *batch, "pgd-2", eps=0.1, check=False)
    assert error.value is fault


@pytest.mark.parametrize(
    "number",
    [Fraction, np.float32, np.float64, np.array, torch.tensor],
    ids=lambda number: number.__name__,
)
def test_any_number_is_a_radius(number, model, batch) -> None:
    x, y = batch[0][:8], batch[1][:8]
    wanted = mrboost.evaluate(model, x, y, "pgd-2", eps=0.125, check=False)
    found = mrboost.evaluate(model, x, y, "pgd-2", eps=number(0.125), check=False)
    assert found["pgd-2"].correct == wanted["pgd-2"].correct
    assert f'"eps": {wanted.eps}' in found.to_json()
    for radii in ([number(0.125)], number(0.125)):
        assert robustness_curve(model, x, y, radii) == robustness_curve(model, x, y, [0.125])
    assert mrboost.evaluate(model, x, y, "pgd-2", eps=number(0.0), check=False).eps == 0


def test_there_is_no_worst_case_over_different_balls(model, batch, small_autoattack) -> None:
    attacks = {"autoattack": small_autoattack, "wide": PGD(0.3, steps=1)}
    result = mrboost.evaluate(model, *batch, attacks, check=False)
    with pytest.raises(InputError, match=r"no worst case .* over different balls"):
        _ = result.worst
    assert (
        robustbench_summary(result, name="n", dataset="d", architecture="a")["worst_case_acc"]
        is None
    )
    with pytest.raises(InputError, match="'autoattack-plus' is not, or was not evaluated"):
        robustbench_summary(
            result, name="n", dataset="d", architecture="a", attack="autoattack-plus"
        )
    two = {name: lambda model, x, y: x for name in ("mine", "yours")}
    with pytest.raises(InputError, match=r"that do not say theirs \(eps and norm\)"):
        _ = mrboost.evaluate(model, *batch, two, check=False).worst


def test_images_without_channels_are_refused_by_a_convolution_and_taken_by_others(
    model, batch
) -> None:
    """Torch would take a single one for an image without a batch."""
    x, y = batch[0][:12, 0], batch[1][:12]
    for attack in ("fgsm", "apgd-ce"):
        with pytest.raises(
            InputError, match=r"the model does not take images of shape \(N, 8, 8\)"
        ):
            mrboost.evaluate(model, x, y, attack)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert mrboost.evaluate(flat, x, y, ["fgsm", "apgd-ce"], eps=0.1, check=False).n == 12
