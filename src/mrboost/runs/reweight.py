"""Learned weights for the members of an ensemble, beyond the paper's uniform ones.

Given the members' logits on perturbed images, the margins of the ensemble are linear in its weights
w: m_i(y') = Σ_j w_j (g_j(x_i)_{y_i} − g_j(x_i)_{y'}). So the weights of the largest minimum margin
are a linear programme, and those of the least cross-entropy (a soft average of the margins) a
convex one, both over the simplex.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy
import torch
from torch import Tensor

from mrboost.attacks import PGD, Attack, attacked
from mrboost.data import validation_split
from mrboost.ensemble import Ensemble
from mrboost.errors import InputError, look_up
from mrboost.evaluation.batches import attacked_batches
from mrboost.game import SAug, solve
from mrboost.progress import Meter

from .evaluate_run import load_data, load_model
from .folder import Run

REPEATS = 3


def reweight_run(
    run_dir: str | Path,
    *,
    objective: str = "average",
    which: str = "best",
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
    progress: bool = False,
) -> list[float]:
    """Learn weights for a run's members on its held-out images, attacked, and keep them:
    ``load`` then uses them."""
    run = Run.open(run_dir)
    name, config = str(run.folder), run.config
    model = load_model(run, which, device)
    if not isinstance(model, Ensemble) or len(model) < 2:
        raise InputError(f"{name!r} is no ensemble of several networks: there is nothing to weigh")
    if config["select_on"] != "validation" or not config["validation"]:
        raise InputError(f"{name!r} has no images that all networks held out to learn from")
    dataset = load_data(run, data_dir, verify=verify)
    _, held_out = validation_split(dataset.train, config["validation"])
    place = model.weights.device
    attack = PGD(config["eps"], config["norm"], steps=20, step_size=config["judge_step"])
    x, y = held_out.images().to(place), held_out.y.to(place)
    # Not what was learned before, so that the same is learned again
    equal = Ensemble(model.members).to(place).eval()
    learned = learn_weights(equal, x, y, attack, objective=objective, progress=progress)
    weights: list[float] = learned.weights.tolist()
    how = f"{objective} margin on {len(held_out)} held-out images under {attack.name}"
    run.save_weights(which, weights, how)
    return weights


def learn_weights(
    ensemble: Ensemble,
    x: Tensor,
    y: Tensor,
    attack: Attack,
    *,
    objective: str = "average",
    progress: bool = False,
) -> Ensemble:
    """The same members with the weights that serve best on adversarial versions of ``x``.

    Reweighting opens new weak spots, so the images are attacked anew with each set of weights,
    several times, and all the perturbed images found so far count. ``objective``: "minimum"
    maximises the least margin (hopeless, and then arbitrary, if one image is lost by all members),
    "average" minimises the cross-entropy. ``progress`` is shown on standard error.
    """
    solvers = {"minimum": maximum_margin, "average": least_cross_entropy}
    solver = look_up("objective", objective, solvers)
    logits = []
    learned = ensemble
    with Meter(progress, "reweight", unit=" images") as meter:
        meter.begin(REPEATS * len(x))
        for repeat in range(1, REPEATS + 1):
            meter.doing(f"attack {repeat} of {REPEATS}")
            for images, _, _ in attacked_batches(learned, x, y, attack):
                with attacked(ensemble), torch.no_grad():
                    answers = [member(images.clone()) for member in ensemble]
                logits.append(torch.stack(answers).double().cpu().numpy())
                meter(len(images))
            weights = solver(np.concatenate(logits, axis=1), y.cpu().repeat(repeat).numpy())
            learned = (
                Ensemble(ensemble.members, weights.tolist()).to(x.device).train(ensemble.training)
            )
            meter.say(
                f"attack {repeat} of {REPEATS} is done, weights "
                f"{', '.join(f'{weight:.3f}' for weight in weights)}"
            )
    return learned


def maximum_margin(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Weights on the simplex that maximise min_{i, y'} m_i(y') for logits ``(T, N, K)``: the
    game of their margins."""
    return solve(SAug(y, logits.shape[2]).scores(logits)).learner


def least_cross_entropy(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Weights on the simplex that minimise the mean cross-entropy of the
    weighted logits: convex."""
    members = len(logits)
    rows = np.arange(len(y))

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logs = scipy.special.log_softmax(np.tensordot(weights, logits, axes=1), axis=1)
        error = np.exp(logs)
        error[rows, y] -= 1
        return -logs[rows, y].mean(), np.einsum("tnk,nk->t", logits, error) / len(y)

    result = scipy.optimize.minimize(
        loss,
        np.full(members, 1 / members),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * members,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones_like(w)},
        options={"maxiter": 300, "ftol": 1e-12},
    )
    weights = np.clip(result.x, 0, None)
    return np.asarray(weights / weights.sum())
