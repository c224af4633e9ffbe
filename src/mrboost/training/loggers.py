"""Loggers for ``boost(on_epoch=…)``: each epoch's figures go to TensorBoard or to Weights & Biases.

Any function of a record is one::

    mrboost.boost("at-mce", on_epoch=print)
    mrboost.boost("at-mce", on_epoch=mrboost.loggers.TensorBoard("logs/at-mce"))
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from mrboost.errors import InputError

from .fit import Record


class TensorBoard:
    """Curves in TensorBoard, one group for each round: ``round 1/loss``.

    Args:
        folder: what ``tensorboard --logdir`` is then given.
    """

    def __init__(self, folder: str | Path) -> None:
        writer = _needed("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(str(folder))

    def __call__(self, record: Record) -> None:
        for name, value in record.items():
            if name not in ("round", "rounds", "epoch", "epochs"):
                self._writer.add_scalar(f"round {record['round']}/{name}", value, record["epoch"])
        self._writer.flush()


class WandB:
    """A run of Weights & Biases with a row for each epoch.

    Args:
        project: its project there.
        settings: further arguments of ``wandb.init``.
    """

    def __init__(self, project: str, **settings: Any) -> None:
        self._run = _needed("wandb", "wandb").init(project=project, **settings)

    def __call__(self, record: Record) -> None:
        self._run.log(record)


def _needed(module: str, package: str) -> Any:
    """A module of an optional package."""
    try:
        return import_module(module)
    except ImportError as error:
        problem = f"{package} cannot be imported ({error})"
        raise InputError(f"{problem}: pip install 'mrboost[{package}]'") from None
