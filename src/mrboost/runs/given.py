"""A folder for the evaluations of a model that was trained elsewhere: they are made, kept and shown
as those of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrboost import files
from mrboost.attacks.model import check_logits
from mrboost.data import Dataset
from mrboost.devices import is_first_process
from mrboost.errors import InputError
from mrboost.models.source import normalization
from mrboost.recipes.config import circumstances
from mrboost.threat import ball

from .folder import GivenModel, Run
from .identity import differences
from .schema import FORMAT

_MODEL = ("model", "given", "data", "input")  # what all evaluations in one folder share


def given_model(
    name: str,
    dataset: Dataset,
    out: str | Path,
    *,
    weights: str | Path | None = None,
    normalize: str | None = None,
    surrogate: str | None = None,
    eps: float | None = None,
    norm: str = "Linf",
    data_dir: str | Path | None = None,
) -> GivenModel:
    """The folder ``out`` of a model's evaluations, made where it is missing.

    Args:
        name: of the model; ``models.add`` imports one, ``timm:NAME`` and its like need no more.
        dataset: what it is evaluated on.
        out: a new folder, or one of the same model and data.
        weights: a file of them, where it has none of its own.
        normalize: mean and deviation that it expects, as ``models.source.normalization`` reads.
        surrogate: name of a differentiable stand-in, whose gradients attacks follow.
        eps, norm, data_dir: the ball of evaluations that name none; where the data lie.

    Example:
        >>> given = given_model("net.py:net", data, "evaluations/net")  # doctest: +SKIP
        >>> evaluate_run(given, ["autoattack"])  # doctest: +SKIP
    """
    usual = dataset.defaults
    if eps is None and norm != "Linf":
        ball(norm, 0.5)  # an unknown name is the first thing to say
        raise InputError(f"the eps of {dataset.name} is for Linf: give --eps for norm {norm!r}")
    eps = eps or usual.eps
    ball(norm, eps)
    given: dict[str, Any] = {"weights": None, "normalize": None}
    given |= {} if surrogate is None else {"surrogate": surrogate}
    if weights is not None:
        given["weights"] = str(Path(weights).absolute())
    if normalize is not None:
        given["normalize"] = list(normalization(normalize, dataset.shape[0]))
    description = {
        "format": FORMAT,
        "recipe": {"name": name, "summary": "trained elsewhere"},
        "model": name,
        "given": given,
        "data": dataset.name,
        "eps": eps,
        "norm": norm,
        "judge_step": eps * (usual.step_size / usual.eps),
        "rounds": 1,
        "validation": 0,
        "select_on": "validation",
        "past": None,
        **circumstances(dataset),
    }
    if data_dir is not None:
        description["data_dir"] = str(Path(data_dir).absolute())
    found = GivenModel(Path(out), description, is_first_process())
    check_logits(found.classifier(), dataset.test[:1].images(), dataset.test.y)
    _write(found.folder, description)
    return found


def _write(folder: Path, description: Mapping[str, Any]) -> None:
    """Describe the model in its folder; refuses a folder of another one, or of a training."""
    if (folder / "config.json").exists():
        saved = Run.open(folder)
        same = isinstance(saved, GivenModel)
        changed = differences(saved.config, description, only=_MODEL)
        if changed or not same:
            what = f"another model ({'; '.join(changed)})" if same else "a training"
            raise InputError(f"{str(folder)!r} is the folder of {what}: choose another --out")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r} exists and holds no evaluations: choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    if is_first_process():
        files.write_json(folder / "config.json", description)
