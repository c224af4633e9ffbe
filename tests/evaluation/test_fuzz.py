"""Odd models, images, labels, radii and attacks in Python: each is answered, or refused in one line
by an exception of the library's own."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import mrboost
from hostile import refuted
from mrboost import InputError, attacks, losses
from mrboost.losses import LOSSES

SHAPES = [(4, 1, 8, 8), (4, 8, 8), (4, 64), (4,), (), (0, 1, 8, 8), (4, 0, 8, 8), (4, 1, 8, 0)]
NUMBERS: list[Any] = [
    *(0.1, 0, 1, -1, 8, 0.5, 1e-300, 1e300, 10**400, -(10**400), math.nan, math.inf, True, None),
    *("0.1", "8/255", [0.1], 1j, np.float32(0.1), torch.tensor(0.1), torch.zeros(2), object()),
]


def images(rng: random.Random) -> Any:
    """A batch that is out of the ordinary in one or two ways."""
    x: Any = torch.rand(rng.choice([SHAPES[0]] * 8 + SHAPES))
    odd: list[Callable[[Tensor], Any]] = [
        lambda x: x * 255,
        lambda x: x - 0.5,
        lambda x: (x * 255).byte(),
        lambda x: x.half(),
        lambda x: x.double().numpy(),
        lambda x: x.numpy().astype(rng.choice(["f2", ">f4", "c8", "O", "U3"])),
        lambda x: x.tolist(),
        lambda x: torch.full_like(x, rng.choice([math.nan, math.inf, -math.inf])),
        lambda x: x.to_sparse(),
        lambda x: x.to("meta"),
        lambda x: torch.nested.nested_tensor([x, x]),
        lambda x: x.to(torch.complex64),
        lambda x: x.requires_grad_(),
        lambda x: x.expand(10**6, *x.shape),
        lambda x: x.transpose(0, -1),
        lambda x: [(x, torch.zeros(len(x), dtype=torch.int64))],
        lambda x: (part for part in [(x[:1], torch.zeros(1, dtype=torch.int64))]),
        lambda _: rng.choice([None, "images", 3, {}, [], object()]),
    ]
    try:
        return rng.choice(odd)(x) if rng.random() < 0.6 else x
    except (RuntimeError, TypeError, IndexError):  # torch itself does not make it
        return x


def labels(rng: random.Random) -> Any:
    """Labels that are out of the ordinary in one way."""
    y = torch.arange(4) % 3
    odd: list[Any] = [
        *(y + 5, y - 1, y * 10**9, y.float(), y.float() + 0.5, y.int(), y.bool(), y.to("meta")),
        *(y[:2], y[:, None], y[None], torch.eye(3)[y], y.to(torch.complex64), y.numpy()),
        *(y.tolist(), y.float() * math.nan, y.to_sparse(), y.numpy().astype("O")),
        *(y.numpy().astype("U1"), None, "labels", 3, [], [[0], [1, 2]], y[:0]),
    ]
    return rng.choice(odd) if rng.random() < 0.6 else y


def model(rng: random.Random) -> Any:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    odd: list[Any] = [
        nn.Linear(64, 3),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 1)),
        nn.Sequential(nn.Conv2d(3, 3, 3), nn.Flatten()),
        lambda x: net(x) * rng.choice([math.nan, math.inf, 0.0]),
        lambda x: net(x).detach(),
        lambda x: net(x.round()),
        lambda x: (net(x), x),
        lambda x: {"logits": net(x)},
        lambda x: net(x).argmax(dim=1),
        lambda x: net(x)[:1],
        lambda x: net(x).long(),
        lambda x: net(x).to_sparse(),
        lambda x: net(x).half(),
        lambda x: net(x).sigmoid().log().log(),
        lambda _: rng.choice([None, 3, "logits", np.zeros((4, 3))]),
        lambda x: x.mul_(0).flatten(1)[:, :3],
        *(nn.Linear, None, "model", 3, net.to(torch.float64), net.train()),
    ]
    return rng.choice(odd) if rng.random() < 0.5 else net


NAMES: list[Any] = [
    *("fgsm", "pgd-2", "square", "apgd-ce", "fab", "cw", "pgd-0", "pgd--1", "pgd-" + "9" * 5000),
    *("FGSM", "clean", "", [], {}, {"y": "fgsm"}, {1: "fgsm"}, None, 3, lambda model, x, y: y),
]


def radius_and_norm(rng: random.Random) -> dict[str, Any]:
    given = {}
    if rng.random() < 0.5:
        given["eps"] = rng.choice(NUMBERS)
    if rng.random() < 0.3:
        given["norm"] = rng.choice(["L2", "L1", "Linf", "l2", "", None, 2, "L0"])
    return given


def evaluating(rng: random.Random, folder: Path) -> None:
    options = radius_and_norm(rng)
    if rng.random() < 0.3:
        options["batch_size"] = rng.choice([1, 2, 0, -1, 10**9, 1.5, "2", None])
    if rng.random() < 0.3:
        kept = [folder, str(folder / "a"), folder / ("x" * 300), "a\0b", folder / "file" / "a"]
        (folder / "file").touch()
        options[rng.choice(["keep", "examples"])] = rng.choice(kept)
    attack = rng.choice(NAMES) if rng.random() < 0.6 else attacks.PGD(0.1, steps=1)
    mrboost.evaluate(
        model(rng), images(rng), labels(rng), attack, check=rng.random() < 0.2, **options
    )


def attacking(rng: random.Random, folder: Path) -> None:
    """An attack made of odd numbers, called with odd tensors."""
    few: list[tuple[Any, dict[str, Any]]] = [
        (attacks.FGSM, {}),
        (attacks.PGD, {"steps": 2}),
        (attacks.CW, {"steps": 2}),
        (attacks.APGD, {"steps": 2}),
        (attacks.FAB, {"steps": 2}),
        (attacks.Square, {"steps": 2}),
    ]
    kind, options = rng.choice(few)
    options = options | radius_and_norm(rng)
    if rng.random() < 0.4:
        small = [value for value in NUMBERS if not (isinstance(value, int) and value > 8)]
        options[rng.choice(["steps", "seed", "restarts", "step_size", "loss"])] = rng.choice(small)
    known = signature(kind).parameters
    attack = kind(**{name: value for name, value in options.items() if name in known})
    attack(model(rng), images(rng), labels(rng))


def losing(rng: random.Random, folder: Path) -> None:
    logits: Any = torch.randn(rng.choice([(4, 3)] * 5 + [(4, 1), (4,), (), (0, 3), (4, 3, 2)]))
    odd: list[Any] = [logits.half(), logits.long(), logits.to("meta"), logits.to_sparse()]
    logits = rng.choice([logits, logits, *odd, logits * math.nan, None, logits.tolist()])
    loss = rng.choice([*LOSSES.values(), losses.margin, losses.boosted_cross_entropy])
    options = {}
    if rng.random() < 0.3:
        options["reduction"] = rng.choice(["none", "sum", "mean", "", None, 3])
    if rng.random() < 0.3 and loss is losses.margin_cross_entropy:
        options["other"] = labels(rng)
    try:
        loss(logits, labels(rng), **options)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from None


DOORS = {"evaluate": evaluating, "attacks": attacking, "losses": losing}


def test_whatever_it_is_given_python_says_one_clear_thing(tmp_path: Path) -> None:
    assert refuted(__file__, tmp_path) == []
