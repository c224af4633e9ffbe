"""How robust is a classifier? Accuracy and margins, clean and under attack, of any model on
any number of images.

``evaluate`` gives an ``Evaluation``. Images are taken chunk by chunk, so memory does not grow with
their number; what is finished of a long evaluation can be kept in a folder and gone on with. All
figures are computed in the model's own precision, image by image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mrboost.attacks import BPDA, Attack, Classifier, as_attack, named
from mrboost.attacks.base import Untouched, ball_of
from mrboost.attacks.others import adapted
from mrboost.attacks.surrogates import on_surrogate
from mrboost.data.dataset import count
from mrboost.devices import device_of
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.progress import Meter
from mrboost.seeds import keep_random_state
from mrboost.threat import no_radius, radius

from .batches import Runner, check_attacks
from .inputs import Chunk, Images, TimeBudget, chunks
from .observers import Examples, Measurements, Observer, ProgressReport
from .probe import probe
from .result import Evaluation, UnfinishedError
from .resume import Saved

Attacks = str | Attack | Sequence[str | Attack] | Mapping[str, Attack]
DEFAULT_ATTACKS = ("fgsm", "pgd-20", "pgd-100", "cw")
Ball = tuple[float | None, str]
"""Radius, if it is known, and norm."""

_PROBED = 8 / 255  # where doubts are looked for, and neither the user nor the attacks say a radius


def _check_place(name: str, path: Path | None) -> None:
    """Refuse a path that no file can have."""
    try:
        if path is not None:
            path.lstat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise InputError(f"{name}={str(path)!r:.200} cannot be: {error!s:.200}") from None


@dataclass(frozen=True)
class EvaluationOptions:
    """How an evaluation is done; the fields are those of ``evaluate``, and ``name``, which lines of
    progress begin with."""

    batch_size: int | None = None
    progress: bool = False
    check: bool = True
    keep: Path | None = None
    resume: bool = False
    examples: Path | None = None
    time_budget: TimeBudget | None = None
    name: str = "evaluate"

    def __post_init__(self) -> None:
        size = self.batch_size
        if size is not None and (not isinstance(size, int | np.integer) or size < 1):
            raise InputError(
                f"batch_size must be at least 1, and whole, got {size}: leave it out, to be chosen"
            )
        for name in ("keep", "examples"):
            _check_place(name, getattr(self, name))
        if self.keep is not None and self.keep.exists() and not self.keep.is_dir():
            raise InputError(f"keep={str(self.keep)!r} is a file: name a folder")
        if self.resume and self.time_budget is not None:
            raise InputError("an evaluation with a time budget starts anew: leave out resume")
        if self.resume and self.keep is None:
            raise InputError("resume=True goes on with nothing: name the folder with keep=")


def evaluate(
    model: Classifier,
    x: Images,
    y: Tensor | None = None,
    attack: Attacks = DEFAULT_ATTACKS,
    *,
    eps: float | None = None,
    norm: str | None = None,
    batch_size: int | None = None,
    progress: bool = False,
    check: bool = True,
    keep: str | Path | None = None,
    resume: bool = False,
    examples: str | Path | None = None,
    time_budget: float | None = None,
    surrogate: Classifier | None = None,
) -> Evaluation:
    """Accuracy of ``model`` on images ``x`` in [0, 1] with labels ``y``, clean and under attack.

    Args:
        model: an ``nn.Module`` on any device, or a differentiable function, that returns logits; or
            a function of arrays or to labels, or a session of ONNX Runtime, without gradients.
        x, y: tensors (or arrays) of images and integer or one-hot labels; they are moved to the
            model batch by batch. Without ``y``, a ``Split`` or any iterable of pairs (images,
            labels), such as a ``DataLoader``.
        attack: a name (``autoattack``, ``apgd-ce``, ``square``, ``fgsm``, ``pgd-20``,
            ``pgd-mce-20``, ``cw``), an attack, several of them, or a mapping from labels to
            attacks. One of foolbox works as it is; one of torchattacks owns its model, which must
            be this very object. Clean accuracy is always reported.
        eps, norm: the ball of attacks given by name, and of foolbox's: of a model of
            ``mrboost.load`` that of its training if not given, of others Linf and an eps that must
            be given. With eps 0 every attack given by name leaves the images as they are.
        batch_size: images at a time; chosen, and halved when memory runs out, if not given.
        progress: a bar on standard error, or where that is no terminal a line for each stage.
        check: look for reasons to doubt the figures.
        keep: a folder for what is finished, yours to remove; ``resume`` goes on with it.
        examples: a .safetensors or .npz file for each attack's images, beside the clean ones.
        time_budget: seconds until no more images are begun; ``chosen`` is the random sample.
        surrogate: a differentiable stand-in for the model, images to logits, where a part of it
            has no useful gradient. Attacks then follow its gradients (``attacks.BPDA``), and what
            PGD-100 finds on it alone is tried on the model too, as ``surrogate``.

    Returns:
        The figures. Where attacks fail, ``UnfinishedError`` has those of the others.

    Example:
        >>> print(evaluate(model, x, y, ["autoattack", "pgd-20"], eps=0.1))  # doctest: +SKIP
    """
    folder, file = (None if path is None else Path(path) for path in (keep, examples))
    budget = None if time_budget is None else TimeBudget(time_budget)
    options = EvaluationOptions(batch_size, progress, check, folder, resume, file, budget)
    ball = _ball(model, eps, norm)
    attacks = resolve_attacks(attack, *ball)
    if surrogate is not None:
        model = BPDA(model, surrogate)
        attacks |= on_surrogate(model, *(_common_ball(attacks, ball) or ball))
    measured = measure(model, x, y, attacks, options, ball=ball)
    if measured.problem:
        raise UnfinishedError(measured.problem, measured.evaluation())
    return measured.evaluation()


def _ball(model: Classifier, eps: float | None, norm: str | None) -> Ball:
    """What was asked for, or else that of the training of a model from a run."""
    own = (model.eps, model.norm) if isinstance(model, Ensemble | Mixture) else (None, None)
    if eps is None and own[0] is not None and norm not in (None, own[1]):
        raise InputError(f"the model's eps is for {own[1]}: give eps for norm {norm!r}")
    return own[0] if eps is None else radius(eps), norm or own[1] or "Linf"


def measure(
    model: Classifier,
    x: Images,
    y: Tensor | None,
    attacks: Mapping[str, Attack],
    options: EvaluationOptions,
    *,
    ball: Ball,
    smaller: Measurements | None = None,
) -> Measurements:
    """Run every attack on every chunk of the images.

    Args:
        model, x, y: as for ``evaluate``.
        attacks: by label.
        options: how it is done.
        ball: eps and norm where there are no attacks that say theirs.
        smaller: of the same images and attacks within a smaller ball. What fell there is not
            attacked again.

    Returns:
        What is known of each image; where attacks failed, it says so.
    """
    eps, norm = _common_ball(attacks, ball) or (None, None)
    device = device_of(model, otherwise=x.device if isinstance(x, Tensor) else torch.device("cpu"))
    measured = Measurements({"clean": None, **attacks}, eps, norm, options.check)
    with (
        torch.inference_mode(False),
        keep_random_state(device),
        Meter(options.progress, options.name) as meter,
        ExitStack() as open_files,
    ):
        expected = x if options.time_budget is None else None
        observers: list[Observer] = [measured, ProgressReport(meter, attacks.values(), expected)]
        if options.examples is not None:
            examples = Examples(options.examples, {"eps": eps, "norm": norm})
            observers.append(open_files.enter_context(closing(examples)))
        saved = Saved(options.keep, resume=options.resume)
        runner = Runner(saved, meter, options.batch_size, options.examples is not None)
        for chunk in chunks(model, x, y, options.time_budget):
            if chunk.number == 0:
                check_attacks(attacks.values(), chunk)
            for observer in observers:
                observer.on_chunk(chunk)
            if chunk.number == 0 and options.check:
                asked = _PROBED if ball[0] is None else ball[0]
                meter.doing("looking for doubts")
                meter.say("looking for doubts")
                found = probe(chunk.model, chunk.x, chunk.y, eps=eps or asked, norm=norm or ball[1])
                measured.doubts = tuple(found)
            _attack_chunk(chunk, measured, runner, observers, smaller)
            if "clean" in measured.failed:
                break
        for observer in observers:
            observer.on_end()
    measured.problem = "; ".join(one.problem for one in observers if one.problem)
    measured.every = count(x) if options.time_budget is not None else None
    return measured


def _common_ball(
    attacks: Mapping[str, Attack], ball: Ball
) -> tuple[float | None, str | None] | None:
    """The ball of all these attacks; ``ball`` if there are none, None if they differ."""
    balls = {ball_of(attack) for attack in attacks.values()} or {ball}
    return balls.pop() if len(balls) == 1 else None


def _attack_chunk(
    chunk: Chunk,
    measured: Measurements,
    runner: Runner,
    observers: Sequence[Observer],
    smaller: Measurements | None,
) -> None:
    """Every attack that has not failed, one after the other."""
    for number, label, attack in measured.going():
        before = None if smaller is None else smaller.part(label, chunk)
        try:
            found = runner.run(attack, chunk, label, f"{chunk.number}-{number}", before)
        except InputError as error:
            for observer in observers:
                observer.on_failure(label, error)
        else:
            for observer in observers:
                observer.on_result(label, chunk, found)


def resolve_attacks(
    attack: Attacks, eps: float | None, norm: str, step_size: float | None = None
) -> dict[str, Attack]:
    """Attacks by label, whatever form they were given in.

    Args:
        attack: as for ``evaluate``; ``clean`` is left out, since it is always there.
        eps, norm: the ball of attacks given by name; without eps they are refused.
        step_size: of PGD given by name; a quarter of eps if not given.
    """
    if isinstance(attack, Mapping):
        return {_label(label): _made(one, eps, norm) for label, one in attack.items()}
    if isinstance(attack, str) or not isinstance(attack, Sequence):
        attack = [attack]
    found: dict[str, Attack] = {}
    for item in attack:
        if item == "clean":
            continue
        if isinstance(item, str):
            label = item
            one = named(item, eps or 0.1, norm, step_size)
            if eps is None:
                raise no_radius(item)
            if eps == 0:
                one = Untouched(item, norm)
        else:
            one = _made(item, eps, norm)
            label = one.name
        if label in found and found[label] != one:
            label = f"{label} ({len(found) + 1})"
        found[_label(label)] = one
    return found


def _label(label: object) -> str:
    if not isinstance(label, str) or label in ("clean", "y"):
        raise InputError(f"an attack's label is a text other than 'clean' and 'y', got {label!r}")
    return label


def _made(attack: object, eps: float | None, norm: str) -> Attack:
    if isinstance(attack, type) or not callable(attack):
        raise InputError(
            f"an attack is a name or a callable attack(model, x, y), got {attack!r}: PGD(eps), say"
        )
    return as_attack(adapted(attack, eps, norm))
