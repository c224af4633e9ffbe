"""One self-contained HTML page on one or several runs: the template ``report.html``, filled.

The page embeds its plots and images; it loads nothing. What it measures itself (the curve over eps)
is kept in the run's results.json, so that a second page is quick.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mrboost import __version__
from mrboost.attacks import PGD, attacked, named
from mrboost.data import Dataset, Split
from mrboost.devices import device_of
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.evaluation.curve import probability_margins, robustness_curve
from mrboost.evaluation.page import MOST_CLASSES, NOTHING_SEEN, headline, write_page
from mrboost.evaluation.result import Evaluation, format_eps, worst_of
from mrboost.files import digest, write_texts
from mrboost.plots import figures as plots
from mrboost.plots.html import render
from mrboost.recipes.config import saved_options
from mrboost.runs import Run
from mrboost.runs.compare import Entry, SideBySide, in_common, run_labels
from mrboost.runs.evaluate_run import draw, load_data, load_model
from mrboost.runs.join import trainings

CURVE_ATTACK = "pgd-20"
CURVE_RADII = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # of the training eps
GALLERY_IMAGES = 10
GALLERY_POOL = 200
HELD_OUT = {"validation": "validation", "test": "test (used for selection: optimistic)"}
SETTINGS = (
    *("recipe", "model", "weights", "normalize", "rounds", "epochs", "later_epochs"),
    *("batch_size", "lr", "later_lr", "step_size", "seed", "validation", "select_on", "first"),
    *("joined", "eps", "steps", "schedule", "ema", "clip", "awp", "smoothing", "cutmix"),
    *("padding", "flip"),
)
Curves = Mapping[str, Mapping[str, Any]]
"""Of each run, as ``_curve`` has it."""


def write_report(
    run_dirs: Sequence[str | Path] | Mapping[str, Evaluation],
    out: str | Path,
    *,
    n: int = 500,
    attack: str = CURVE_ATTACK,
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
    plots_dir: str | Path | None = None,
    progress: bool = False,
) -> Path:
    """Write the page on these runs, or on evaluations of any models by their labels, to ``out`` and
    return its path.

    ``n`` test images under ``attack``, a name, make the curve over eps. With ``plots_dir`` the
    plots are kept there too, as SVG files.
    """
    if isinstance(run_dirs, Mapping):
        found = {label: one.to_dict() for label, one in run_dirs.items()}
        write_page(found, {label: one.to_rows() for label, one in run_dirs.items()}, Path(out))
        return Path(out)
    named(attack)  # refuses an unknown name before anything is loaded
    runs = _opened(run_dirs)
    first = next(iter(runs.values()))
    dataset = load_data(first, data_dir, verify=verify)
    test = draw(dataset.test, min(n, len(dataset.test)))
    curves, galleries = {}, []
    for label, run in runs.items():
        model = load_model(run, "best", device)
        curves[label] = _curve(run, model, test, attack, progress)
        galleries.append({"label": label, **_gallery(run, model, dataset)})
    every = list(runs.values())
    metrics = {label: _epochs(run) for label, run in runs.items() if run.metrics()}
    rounds = {label: run.results.get("rounds", []) for label, run in runs.items()}
    figures = _figures(every, curves, metrics, rounds)
    page = render(
        Path(__file__).with_name("report.html"),
        labels=list(runs),
        config=first.config,
        radii=dict.fromkeys(format_eps(run.config["eps"]) for run in every),
        dataset=dataset,
        images=len(test),
        attack=attack,
        figures=figures,
        alts=_in_words(curves, metrics, rounds, attack),
        **_evaluations(runs),
        galleries=galleries,
        shown=GALLERY_IMAGES // 2,
        settings=_settings(every),
        command="mrboost report " + " ".join(str(run.folder) for run in every),
        version=__version__,
    )
    plots_in = {} if plots_dir is None else figures
    svgs = {Path(plots_dir or "") / f"{name}.svg": svg for name, svg in plots_in.items()}
    write_texts({Path(out): page, **svgs})
    return Path(out)


def _opened(run_dirs: Sequence[str | Path]) -> dict[str, Run]:
    """The runs by their labels; those of several datasets or norms are refused."""
    runs = [Run.open(folder) for folder in run_dirs]
    for key, what in (("data", "on different data"), ("norm", "of different norms")):
        found = dict.fromkeys(str(run.config[key]) for run in runs)
        if len(found) > 1:
            raise InputError(f"the runs are {what} ({', '.join(found)}): report each alone")
    return dict(zip(run_labels(runs), runs, strict=True))


def _curve(
    run: Run, model: Ensemble | Mixture, test: Split, attack: str, progress: bool
) -> dict[str, Any]:
    """Accuracy against eps and the margins under attack, kept in results.json for the next page."""
    eps, norm = run.config["eps"], run.config["norm"]
    of = {"of": run.fingerprint(), "images": digest(test.x, test.y)}
    asked = {"attack": attack, "norm": norm, "n": len(test), **of}
    kept: dict[str, Any] = run.results.get("curve", {})
    if all(kept.get(key) == value for key, value in asked.items()):
        return kept
    most = 1.0 if norm == "Linf" else math.inf
    radii = {min(share * eps, most) for share in CURVE_RADII}
    x, y = test.images(), test.y
    points = robustness_curve(model, x, y, radii, attack=attack, norm=norm, progress=progress)
    margins = probability_margins(model, x, y, named(attack, eps, norm))
    curve = {**asked, "points": points, "margins": [round(value, 4) for value in margins]}
    # A run that one may only read is measured anew each time
    with suppress(OSError), run.changing_results() as results:
        results["curve"] = curve
    return curve


def _epochs(run: Run) -> list[plots.Rows]:
    """The epochs of each training behind a run: one, but for networks that were joined."""
    ends = [*accumulate(trainings(run), initial=0)]
    ends[-1] = run.config["rounds"]  # the round under way too
    return [
        [row for row in run.metrics() if first < row["round"] <= last]
        for first, last in pairwise(ends)
    ]


def _figures(
    runs: Sequence[Run], curves: Curves, metrics: plots.Metrics, rounds: Mapping[str, plots.Rows]
) -> dict[str, str]:
    """The plots by name, as SVG text."""
    trained = list(dict.fromkeys(run.config["eps"] for run in runs))
    selected = {run.config["select_on"] for run in runs}
    held_out = "held-out (some of them test)"
    if len(selected) == 1:
        held_out = HELD_OUT[selected.pop()]
    points = {label: curve["points"] for label, curve in curves.items()}
    margins = {label: curve["margins"] for label, curve in curves.items()}
    figures = {
        "robustness": plots.robustness_curves(points, trained, runs[0].config["norm"]),
        "margins": plots.margin_curves(margins, trained),
    }
    if metrics:
        figures["training"] = plots.training_curves(metrics, held_out)
        figures["loss"] = plots.loss_curves(metrics)
    if len(metrics) > 1:
        figures["minutes"] = plots.training_curves(metrics, held_out, over="minutes")
    if any(len(rows) > 1 for rows in rounds.values()):
        figures["rounds"] = plots.round_curves(rounds, held_out)
    return figures


def _in_words(
    curves: Curves, metrics: plots.Metrics, rounds: Mapping[str, plots.Rows], attack: str
) -> dict[str, str]:
    """What the plots show, in words for those who do not see them."""
    at_eps, fooled = [], []
    for label, curve in curves.items():
        points = [f"{accuracy:.1%} at {format_eps(eps)}" for eps, accuracy, _ in curve["points"]]
        at_eps.append(f"{label} {', '.join(points)}")
        share = sum(value <= 0 for value in curve["margins"]) / len(curve["margins"])
        fooled.append(f"{label} {share:.1%}")
    ends = [
        f"{label} {rows[-1]['clean']:.1%} clean and {rows[-1]['robust']:.1%} under PGD-20"
        for label, trained in metrics.items()
        for rows in trained
        if rows
    ]
    after = [
        f"{label} {rows[0]['pgd-20']['accuracy']:.1%} with one and "
        f"{rows[-1]['pgd-20']['accuracy']:.1%} with {len(rows)} members"
        for label, rows in rounds.items()
        if len(rows) > 1
    ]
    return {
        "robustness": f"Curves of accuracy under {attack} against eps: {'; '.join(at_eps)}",
        "margins": f"Curves of margins under attack; the share below 0: {', '.join(fooled)}",
        "training": f"Curves of accuracy by epoch, which end at: {'; '.join(ends)}",
        "loss": "Curves of the training loss by epoch",
        "minutes": f"The same curves of accuracy by minutes: {'; '.join(ends)}",
        "rounds": f"Curves of accuracy under PGD-20 by members: {'; '.join(after)}",
    }


def _evaluations(runs: Mapping[str, Run]) -> dict[str, Any]:
    """What the page says of the evaluations of the runs, by their labels."""
    every = list(runs.values())
    evaluated = SideBySide.of(every)
    by_run = {
        label: rows
        for label in runs
        if (rows := [row for row in evaluated.rows if row.label == label])
    }
    facts = [row.facts for row in evaluated.rows]
    table = in_common(evaluated.head()[: len(facts[0])] if facts else [], facts)
    few_classes = every[0].config["input"]["classes"] <= MOST_CLASSES
    return {
        "headlines": [_headline(runs[label], rows) for label, rows in by_run.items()],
        "evaluated": evaluated,
        "table": table,
        "comparisons": evaluated.comparisons(),
        "waiting": [run.folder for run in evaluated.without(every)],
        "doubts": _doubts(evaluated),
        "nothing_seen": NOTHING_SEEN,
        "classes": _classes(evaluated, table[1]) if few_classes else [],
    }


def _headline(run: Run, rows: Sequence[Entry]) -> dict[str, Any]:
    """What was measured of a run as a whole: with most members, the best weights, in its own ball,
    on most images."""
    own_ball = run.config["eps"], run.config["norm"]

    def rank(row: Entry) -> tuple[object, ...]:
        one = row.evaluation
        return one["members"], one["weights"] != "last", row.ball == own_ball, one["n"]

    row = max(reversed(rows), key=rank)
    label, members, weights, ball, _ = row.facts
    about = run.config["recipe"]["summary"]
    if run.rounds_done() > 1:
        about += f"; {members} of {run.rounds_done()} members"
    if weights == "last":
        about += "; last weights"
    one = {"failed": (), **row.evaluation, "worst": worst_of(row.evaluation)}
    command = shlex.join(["mrboost", "evaluate", str(run.folder), "--attack", "autoattack"])
    return headline(label, one, ball, about=about, command=command)


def _doubts(evaluated: SideBySide) -> list[str]:
    """Each doubt once, though several evaluations of a run may give it."""
    doubts = [
        f"{row.label}: {doubt['message']}"
        for row in evaluated.rows
        for doubt in row.evaluation.get("doubts", [])
    ]
    doubts += [
        f"{row.label}: no reasons to doubt its figures were looked for (--no-check)"
        for row in evaluated.rows
        if not row.evaluation.get("checked", True)
    ]
    return list(dict.fromkeys(doubts))


def _classes(
    evaluated: SideBySide, facts: Sequence[Sequence[str]]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Clean outcomes, and those under the attack that fools the classifier most.

    ``facts`` is a table of what tells the evaluations apart.
    """
    head, *rows = facts
    lines = []
    for row, told in zip(evaluated.rows, rows, strict=True):
        outcomes = row.outcomes
        of_classes = [outcome for outcome in outcomes.values() if "per_class" in outcome]
        hardest = min(of_classes, key=lambda outcome: float(outcome["accuracy"]))
        which = [f"{name} {fact}" for name, fact in zip(head, told, strict=True)]
        name = ", ".join([told[0], *which[1:]])
        for outcome in [outcomes["clean"], hardest] if "clean" in outcomes else [hardest]:
            lines.append((f"{name}: {outcome['attack']}", outcome))
    return lines


def _gallery(run: Run, model: Ensemble | Mixture, dataset: Dataset) -> dict[str, Any]:
    """Some test images that the attack fools and some that stand: clean, attacked, and the
    perturbation, with the answers."""
    pool = draw(dataset.test, min(GALLERY_POOL, len(dataset.test)))
    device = device_of(model)
    x, y = pool.images().to(device), pool.y.to(device)
    eps = run.config["eps"]
    x_adv = PGD(eps, run.config["norm"], steps=20)(model, x, y)
    with attacked(model), torch.no_grad():
        clean, adversarial = (model(images).softmax(dim=1) for images in (x, x_adv))
    right, stands = clean.argmax(dim=1) == y, adversarial.argmax(dim=1) == y
    fell, stood = ((right & kind).nonzero().squeeze(1).tolist() for kind in (~stands, stands))
    chosen = fell[: GALLERY_IMAGES // 2] + stood or list(range(len(x)))
    chosen = chosen[:GALLERY_IMAGES]
    noise = (x_adv - x).flatten(1)
    scale = noise.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
    noise = (0.5 + 0.5 * noise / scale).view_as(x)
    title = f"attacked, {format_eps(eps)}"
    return {
        "right": int(right.sum()),
        "fell": len(fell),
        "rows": [
            ("clean", _pictures(x[chosen], y[chosen], clean[chosen], dataset)),
            (title, _pictures(x_adv[chosen], y[chosen], adversarial[chosen], dataset)),
            ("perturbation", [{"image": image, "alt": "scaled"} for image in noise[chosen]]),
        ],
    }


def _pictures(images: Tensor, y: Tensor, answers: Tensor, dataset: Dataset) -> list[dict[str, Any]]:
    """Images with the class that the model answers, its probability, and whether it is right."""
    found = []
    for image, target, answer in zip(images, y.tolist(), answers.cpu(), strict=True):
        k = int(answer.argmax())
        verdict = "right" if k == target else "wrong"
        caption = f"{dataset.classes[k]} {float(answer[k]):.0%}"
        alt = f"image of class {dataset.classes[target]}, answered {caption}"
        found.append({"image": image, "caption": caption, "verdict": verdict, "alt": alt})
    return found


def _settings(runs: Sequence[Run]) -> list[list[str]]:
    """The options of the runs, a line each, without those that no run has."""
    described = []
    for run in runs:
        config = run.config | saved_options(run.config)
        config["recipe"] = run.config["recipe"]["summary"]
        first = run.config.get("first") or {}
        config["first"] = first.get("run") or first.get("weights")
        config |= run.config.get("given") or {}
        if joined := run.config.get("joined"):
            config |= {"joined": ", ".join(part["run"] for part in joined), "rounds": None}
        described.append(config)
    found = {key: [config.get(key) for config in described] for key in SETTINGS}
    return [
        [key, *(_value(key, value) for value in values)]
        for key, values in found.items()
        if key == "seed" or any(values)
    ]


def _value(key: str, value: object) -> str:
    """An option's value, numbers with six digits at most."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_eps(value) if key in ("eps", "step_size") else f"{value:g}"
    if isinstance(value, list):
        return ", ".join(_value(key, item) for item in value)
    return str(value)
