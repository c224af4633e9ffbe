"""Cards: a figure with all that is needed to publish it, and for a stranger to measure it again.

::

    card.md      what RobustBench's form for new models asks for, and how it was measured
    card.json    the same as values, with the outcome of each image: a bit for each in hexadecimal

What only the author knows, as the paper's title, is left empty. ``mrboost evaluate --card`` writes
a card, ``verify.py`` measures a part of one again, and ``compare.py`` takes it in the place of a
run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mrboost import files
from mrboost.attacks import BPDA, Attack, Search
from mrboost.attacks.model import networks
from mrboost.attacks.survivors import InTurn
from mrboost.devices import device_name, device_of
from mrboost.ensemble import Mixture
from mrboost.errors import InputError
from mrboost.evaluation.result import Outcome, format_eps, robustbench_summary, worst_of
from mrboost.evaluation.resume import weights_key
from mrboost.evaluation.statistics import worst_case
from mrboost.plots.html import render
from mrboost.recipes.config import describe_parts

from . import schema
from .evaluate_run import Evaluated
from .folder import Run

FORMAT = 1
LARGEST = 2**24  # bytes of a card; that of 50,000 images and ten attacks has a hundredth
UNSEEN = "not known: the model only answers"
AUTHORS = ("name", "link", "authors", "venue", "checkpoint_and_code", "license", "reported")
_AUTOATTACKS = ("autoattack", "autoattack-plus", "autoattack-rand")


def make_card(found: Evaluated, command: str = "") -> dict[str, Any]:
    """The card of an evaluation.

    Args:
        found: of ``evaluate_radii``.
        command: what made it, as it can be typed again.

    Example:
        >>> (found,) = evaluate_radii("runs/a", ["autoattack"], [0.1])  # doctest: +SKIP
        >>> write_card(make_card(found), "at-digits")  # doctest: +SKIP
    """
    evaluation = found.evaluation
    if evaluation.failed or not evaluation.outcomes:
        failed = ", ".join(evaluation.failed)
        raise InputError(f"there is no card where attacks failed ({failed}): leave them out")
    worst = evaluation.to_dict()["worst"]
    return {
        "format": FORMAT,
        "submission": _submission(found),
        "model": _model(found),
        "data": _data(found),
        "evaluation": {
            "norm": evaluation.norm,
            "eps": evaluation.eps,
            "n": evaluation.n,
            "left_out": evaluation.left_out,
            "outcomes": [_outcome(one, found.attacks) for one in evaluation.outcomes],
            "worst": worst and {key: worst[key] for key in ("accuracy", "interval")},
            "checked": found.checked,
            "doubts": [asdict(doubt) for doubt in evaluation.doubts],
        },
        "made": {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command,
            "device": device_name(device_of(found.subject.model)),
            "versions": versions(),
        },
    }


def _submission(found: Evaluated) -> dict[str, Any]:
    """RobustBench's entry; what it asks of the authors is empty."""
    config, evaluation = found.subject.run.config, found.evaluation
    foreign = "given" in config or "joined" in config or "first" in config
    facts = dict.fromkeys(AUTHORS, "") | {
        "architecture": config["model"],
        "dataset": config["data"],
        "additional_data": None if foreign else False,
        "number_forward_passes": found.subject.members,
        "footnote": "",
    }
    label = next((name for name in _AUTOATTACKS if name in found.attacks), None)
    if label is not None:
        return robustbench_summary(evaluation, attack=label, **facts)
    eps = None if evaluation.eps is None else format_eps(evaluation.eps)
    clean = f"{100 * evaluation['clean'].accuracy:.2f}"
    figures = {"threat_model": evaluation.norm, "eps": eps, "clean_acc": clean}
    return facts | figures | {"autoattack_acc": None}


def _model(found: Evaluated) -> dict[str, Any]:
    subject, config = found.subject, found.subject.run.config
    model: object = subject.model
    parameters = nn.ModuleList(networks(_own(model))).parameters()
    return {
        "recipe": config["recipe"]["name"],
        "architecture": config["model"],
        "members": subject.members,
        "randomised": isinstance(model, Mixture),
        "which": subject.request.which,
        "parameters": sum(one.numel() for one in parameters) or None,
        "weights": weights_of(model),
        "surrogate": config.get("given", {}).get("surrogate"),
        "training_seed": config.get("seed"),
    }


def _own(model: object) -> object:
    """A model without the stand-in for its gradients."""
    return model.model if isinstance(model, BPDA) else model


def weights_of(model: object) -> str | None:
    """The digest of a model's weights, its stand-in's among them; None of one that only answers,
    whose weights cannot be seen."""
    seen = any(network.state_dict() for network in networks(_own(model)))
    return weights_key(model) if seen else None


def _data(found: Evaluated) -> dict[str, Any]:
    """Which images; ``points`` has a bit for each test image, null stands for all."""
    subject, facts = found.subject, found.subject.facts(found.evaluation)
    evaluated = torch.zeros(len(subject.whole), dtype=torch.bool)
    evaluated[facts["points"] or slice(None)] = True
    return {
        "name": subject.run.config["data"],
        "test_images": len(subject.whole),
        "fingerprint": subject.whole.fingerprint(),
        "points": None if facts["whole"] else pack(evaluated.tolist()),
        "images": facts["images"],
    }


def _outcome(outcome: Outcome, attacks: Mapping[str, Attack]) -> dict[str, Any]:
    """An attack's figures, and its settings; ``correct`` has a bit for each image."""
    attack = attacks.get(outcome.attack)
    parts = () if isinstance(attack, Search) or not isinstance(attack, InTurn) else attack.searches
    certain = all(value in (0, 1) for value in outcome.correct)
    kept = ("attack", "accuracy", "interval", "seconds", "black_box", "stages")
    values = asdict(outcome)
    return {key: values[key] for key in kept} | {
        "seed": None if attack is None else attack.seed,
        "settings": settings_of(attack),
        "stage_settings": [settings_of(part) for part in parts],
        "correct": pack(outcome.correct) if certain else None,
    }


def settings_of(attack: Attack | None) -> Any:
    """The settings of an attack, as a card holds them."""
    return json.loads(json.dumps(describe_parts(attack), default=str))


def versions() -> dict[str, str]:
    from mrboost import __version__

    return {"mrboost": __version__, "torch": torch.__version__, "numpy": np.__version__}


def pack(values: Sequence[float]) -> str:
    """Zeros and ones as bits, in hexadecimal."""
    return np.packbits(np.array(values, dtype=bool)).tobytes().hex()


def unpack(text: str, count: int) -> Tensor:
    """The first ``count`` of such bits."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=count)
    return torch.from_numpy(bits).bool()


@dataclass(eq=False)
class Card(Run):
    """A card that was read: one evaluation, which is compared as those of runs are."""

    @classmethod
    def read(cls, path: str | Path) -> Card:
        """Refuses what is no card, and one whose figures are not those of its images."""
        path = Path(path)
        files.require_regular(path)
        if path.suffix == ".md":
            there = "beside it" if (beside := path.with_suffix(".json")).exists() else "not there"
            raise InputError(f"{path} is the page of a card: give {beside}, which is {there}")
        if not path.exists():
            raise InputError(f"there is no card {str(path)!r}: give the .json that --card wrote")
        if path.stat().st_size > LARGEST:
            raise InputError(f"{path} is larger than {LARGEST // 2**20} MiB: it is no card")
        content = files.read_json(path)
        schema.check_card(content, path)
        card = cls(path, content | {"recipe": {"name": content["model"]["recipe"]}})
        card._check_figures()
        return card

    @property
    def points(self) -> Tensor:
        """The numbers of the images that were evaluated."""
        data = self.config["data"]
        if data["points"] is None:
            return torch.arange(data["test_images"])
        return unpack(data["points"], data["test_images"]).nonzero().squeeze(1)

    def correct(self, outcome: dict[str, Any]) -> Tensor | None:
        """Which of these withstood an attack, if the card says."""
        bits = outcome["correct"]
        return None if bits is None else unpack(bits, self.config["evaluation"]["n"])

    def evaluations(self) -> list[dict[str, Any]]:
        """Its evaluation, as a run holds one."""
        content, model = self.config["evaluation"], self.config["model"]
        outcomes = []
        for one in content["outcomes"]:
            known = self.correct(one)
            bits = {} if known is None else {"correct": known.tolist()}
            outcomes.append({key: one[key] for key in one if key != "correct"} | bits)
        facts = {"weights": model["which"], "members": model["members"]}
        images = {"images": self.config["data"]["images"]}
        return [{**content, **facts, **images, "outcomes": outcomes}]

    def _check_figures(self) -> None:
        """Refuse accuracies that do not follow from the images."""
        (evaluation,) = self.evaluations()
        if len(self.points) != evaluation["n"]:
            raise self._wrong(f"{len(self.points)} images are marked, and n is {evaluation['n']}")
        figures = [(one["attack"], one, one.get("correct")) for one in evaluation["outcomes"]]
        if evaluation["worst"] is not None and (worst := worst_of(evaluation)):
            figures.append(("the worst case", evaluation["worst"], worst["correct"]))
        for name, one, correct in figures:
            if correct is None:
                continue
            accuracy, (low, high) = worst_case([correct])
            told = (one["accuracy"], *one["interval"])
            if any(abs(a - b) > 1e-6 for a, b in zip(told, (accuracy, low, high), strict=True)):
                raise self._wrong(f"the figures of {name} are not those of its images")
        said = {one["attack"]: f"{100 * one['accuracy']:.2f}" for one in evaluation["outcomes"]}
        label = next((name for name in _AUTOATTACKS if name in said), "")
        for key, name in (("clean_acc", "clean"), ("autoattack_acc", label)):
            if self.config["submission"][key] != said.get(name):
                raise self._wrong(f"{key} of the submission is not that of the evaluation")

    def _wrong(self, problem: str) -> InputError:
        return InputError(f"{self.folder}: {problem}: the card was changed, ask for the original")


def check_place(path: Path) -> None:
    """Refuse, before anything is measured, a place where no card can be written."""
    folder = next(part for part in path.absolute().parents if part.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InputError(f"cannot write a card to {str(path)!r}: choose another place")


def write_card(card: dict[str, Any], path: str | Path) -> tuple[Path, Path]:
    """Write a card as JSON and as Markdown: PATH.json and PATH.md."""
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in (".json", ".md") else path
    as_json, as_text = (stem.with_name(f"{stem.name}{end}") for end in (".json", ".md"))
    text = json.dumps(card, indent=2, default=str) + "\n"
    files.write_texts({as_json: text, as_text: markdown(card, as_json.name)})
    return as_json, as_text


def markdown(card: dict[str, Any], name: str) -> str:
    """A card as a page: RobustBench's form first, then how the figures were measured.

    Args:
        card: of ``make_card``.
        name: of the JSON file beside the page.
    """
    eps = card["evaluation"]["eps"]
    words = {"eps": "several" if eps is None else format_eps(eps), "inline": _inline}
    return render(Path(__file__).with_suffix(".md"), **card, name=name, unseen=UNSEEN, **words)


def _inline(part: dict[str, Any]) -> str:
    """``APGD(steps=100, …)``, but for the ball, which all share."""
    shown = {key: part[key] for key in part if key not in ("part", "eps", "norm", "seed")}
    text = ", ".join(f"{key}={value}" for key, value in shown.items())
    return re.sub(r"\s+", " ", f"{part['part']}({text})").replace("|", "/")
