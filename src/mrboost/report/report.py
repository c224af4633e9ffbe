"""One self-contained HTML page on one or several runs: figures to read, not raw numbers to decode.

The page embeds its plots and images; it loads nothing. What it measures itself (the curve over eps)
is kept in the run's results.json, so that a second page is quick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mrboost import __version__
from mrboost.attacks import PGD, attacked, named
from mrboost.data import Dataset, Split
from mrboost.ensemble import Ensemble, Mixture
from mrboost.errors import InputError
from mrboost.evaluation.curve import probability_margins, robustness_curve
from mrboost.evaluation.result import format_eps
from mrboost.files import digest, write_texts
from mrboost.plots import figures as plots
from mrboost.plots.html import embedded, html_page, png, table
from mrboost.recipes.config import saved_options
from mrboost.runs import Run
from mrboost.runs.compare import DIFFERENCES, SideBySide, half_width, run_labels
from mrboost.runs.evaluate_run import draw, load_data, load_model

CURVE_ATTACK = "pgd-20"
CURVE_RADII = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # of the training eps
GALLERY, GALLERY_POOL = 10, 200
MOST_CLASSES = 20  # for the table by class


def write_report(
    run_dirs: Sequence[str | Path],
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
    """Write the page on these runs to ``out`` and return its path.

    ``n`` test images under ``attack``, a name, make the curve over eps. With ``plots_dir`` the
    plots are kept there too, as SVG files.
    """
    runs = [Run.open(folder) for folder in run_dirs]
    named(attack)  # a mistyped name is found before anything is loaded
    for key, what in (("data", "on different data"), ("norm", "of different norms")):
        if len(found := dict.fromkeys(str(run.config[key]) for run in runs)) > 1:
            raise InputError(f"the runs are {what} ({', '.join(found)}): report each alone")
    dataset = load_data(runs[0], data_dir, verify=verify)
    labels = run_labels(runs)
    test, measured, galleries = draw(dataset.test, min(n, len(dataset.test))), {}, []
    for label, run in zip(labels, runs, strict=True):
        model = load_model(run, "best", device)
        measured[label] = _measure(run, model, test, attack, progress)
        galleries.append(_gallery(label, run, model, dataset))
    figures = _figures(labels, runs, measured)
    evaluated = SideBySide.of(runs)
    body = [
        _headline(labels, runs, dataset),
        _results_table(evaluated, runs),
        "<h2>How much attack it withstands, and by what margin</h2>",
        f"<div class=row>{embedded(figures['robustness'])}{embedded(figures['margins'])}</div>",
        f"<p class=note>{len(test):,} test images, best weights, {escape(attack)}. Left: each "
        "radius attacks the images that survived the smaller ones. Right: the probability of the "
        "true class minus the largest other one on attacked images; the height at 0 is the share "
        "that the attack fools.</p>",
        f"<h2>Round by round</h2>{embedded(figures['rounds'])}" if "rounds" in figures else "",
        _class_table(evaluated, dataset),
        "<h2>Training</h2>",
        f"<div class=row>{embedded(figures['training'])}{embedded(figures['loss'])}</div>",
        _by_the_clock(figures["minutes"]) if "minutes" in figures else "",
        "<h2>What the attack does</h2>",
        *galleries,
        _configuration(labels, runs),
    ]
    svgs = (
        {}
        if plots_dir is None
        else {Path(plots_dir) / f"{name}.svg": svg for name, svg in figures.items()}
    )
    write_texts({Path(out): html_page("\n".join(body)), **svgs})
    return Path(out)


def _figures(
    labels: Sequence[str], runs: Sequence[Run], measured: Mapping[str, dict[str, Any]]
) -> dict[str, str]:
    metrics = {label: run.metrics() for label, run in zip(labels, runs, strict=True)}
    rounds = {label: run.results.get("rounds", []) for label, run in zip(labels, runs, strict=True)}
    trained, selected = (
        list(dict.fromkeys(run.config[key] for run in runs)) for key in ("eps", "select_on")
    )
    held_out = (
        "validation" if selected == ["validation"] else "test (used for selection: optimistic)"
    )
    held_out = held_out if len(selected) == 1 else "held-out (some of them test)"
    curves = {label: found["points"] for label, found in measured.items()}
    figures = {
        "robustness": plots.robustness_curves(curves, trained, runs[0].config["norm"]),
        "margins": plots.margin_curves(
            {label: found["margins"] for label, found in measured.items()}, trained
        ),
        "training": plots.training_curves(metrics, held_out),
        "loss": plots.loss_curves(metrics),
    }
    if len(runs) > 1:
        figures["minutes"] = plots.training_curves(metrics, held_out, over="minutes")
    if any(len(rows) > 1 for rows in rounds.values()):
        figures["rounds"] = plots.round_curves(rounds, held_out)
    return figures


def _measure(
    run: Run, model: Ensemble | Mixture, test: Split, attack: str, progress: bool
) -> dict[str, Any]:
    """The curve over eps and the margins under attack on these images; kept in
    results.json for the next page."""
    wanted = {"attack": attack, "norm": run.config["norm"], "n": len(test), "of": run.fingerprint()}
    wanted["images"] = digest(test.x, test.y)
    kept = run.results.get("curve", {})
    if all(kept.get(key) == value for key, value in wanted.items()) and len(kept["points"][0]) == 3:
        return dict(kept)
    radii = [scale * run.config["eps"] for scale in CURVE_RADII]
    if run.config["norm"] == "Linf":
        radii = sorted({min(radius, 1.0) for radius in radii})
    x, y = test.images(), test.y
    points = robustness_curve(
        model, x, y, radii, attack=attack, norm=run.config["norm"], progress=progress
    )
    margins = probability_margins(model, x, y, named(attack, run.config["eps"], run.config["norm"]))
    curve = {**wanted, "points": points, "margins": [round(value, 4) for value in margins]}
    with suppress(OSError):  # of a run that one may only read it is measured anew each time
        run.save_results(lambda results: results | {"curve": curve})
    return curve


def _by_the_clock(figure: str) -> str:
    return (
        f"<div class=row>{embedded(figure)}</div><p class=note>An epoch of a later round attacks "
        "more members and so takes longer. The minutes are those of the machine that trained, "
        "whatever else it did meanwhile.</p>"
    )


def _headline(labels: Sequence[str], runs: Sequence[Run], dataset: Dataset) -> str:
    config, radii = runs[0].config, dict.fromkeys(format_eps(run.config["eps"]) for run in runs)
    shape = "×".join(str(size) for size in dataset.shape)
    return (
        f"<h1>Robustness of {escape(', '.join(labels))}</h1>"
        f"<p>Trained on <b>{escape(config['data'])}</b> ({len(dataset.train):,} training and "
        f"{len(dataset.test):,} test images of {shape}, {dataset.num_classes} classes) against "
        f"{config['norm']} perturbations of eps = {', '.join(radii)}.</p>"
    )


def _results_table(evaluated: SideBySide, runs: Sequence[Run]) -> str:
    missing = ""
    if waiting := evaluated.without(runs):
        commands = "<br>".join(
            f"<code>mrboost evaluate {escape(str(run.folder))}</code>" for run in waiting
        )
        missing = (
            "<p class=note>Not evaluated yet. For the table of test accuracies "
            f"run<br>{commands}</p>"
        )
    if not evaluated.rows:
        return missing
    lines = []
    for i, (_, _, found) in enumerate(evaluated.rows):
        cells = [
            _cell(found[k], evaluated.is_best(i, k)) if k in found else "–"
            for k in evaluated.attacks
        ]
        lines.append([*map(escape, evaluated.facts(i)), *cells])
    return (
        "<h2>Accuracy on test images</h2><div "
        f"class=scroll>{table(map(escape, evaluated.head()), lines)}</div><p class=note>In per "
        "cent, with half the width of the 95 % interval; the best on the same images in the same "
        "ball is bold, of worst cases only over the same attacks (on members apart). Under an "
        "attack: the share of images that stay correctly classified. An attack gives an upper "
        "bound on robustness: a stronger one may find more. Worst case: each image counts as its "
        "worst outcome over the attacks.</p>"
        + "".join(f"<p class=note>{escape(line)}.</p>" for line in evaluated.failures())
        + missing
        + _differences(evaluated)
        + _doubts(evaluated)
    )


def _differences(evaluated: SideBySide) -> str:
    lines = evaluated.differences()
    if not lines:
        return ""
    body = table(map(escape, ("", *evaluated.head()[2:])), (map(escape, line) for line in lines))
    return f"<p class=note>{DIFFERENCES}</p><div class=scroll>{body}</div>"


def _doubts(evaluated: SideBySide) -> str:
    """What the evaluations give to doubt, run by run."""
    found: dict[str, None] = {}  # an ordered set: several evaluations of a run see the same
    for label, evaluation, _ in evaluated.rows:
        for doubt in evaluation.get("doubts", []):
            found[f"<li>{escape(label)}: {escape(doubt['message'])}</li>"] = None
    return f"<h2>Reasons to doubt these figures</h2><ul>{''.join(found)}</ul>" if found else ""


def _class_table(evaluated: SideBySide, dataset: Dataset) -> str:
    """Clean and attacked accuracy of each class, under the strongest attack that was evaluated."""
    if dataset.num_classes > MOST_CLASSES:
        return ""
    lines = []
    for i, (_, _, found) in enumerate(evaluated.rows):
        hardest = min(
            (o for o in found.values() if "per_class" in o), key=lambda outcome: outcome["accuracy"]
        )
        for outcome in [found["clean"], hardest] if "clean" in found else [hardest]:
            # Older ones had none
            ends = outcome.get("class_intervals") or [None] * len(outcome["per_class"])
            cells = [
                "–"
                if v is None
                else f"{100 * v:.0f}{f' <small>{half_width(end)}</small>' if end else ''}"
                for v, end in zip(outcome["per_class"], ends, strict=True)
            ]
            lines.append(
                [escape(f"{', '.join(evaluated.facts(i))} images: {outcome['attack']}"), *cells]
            )
    if not lines:
        return ""
    body = table(["accuracy, %", *map(escape, dataset.classes)], lines)
    note = "Run, members, weights, ball and images; clean, and under the attack that fools it most."
    return f"<h2>Class by class</h2><div class=scroll>{body}</div><p class=note>{note}</p>"


def _cell(outcome: dict[str, Any], best: bool) -> str:
    figure = f"{100 * outcome['accuracy']:.2f} <small>{half_width(outcome['interval'])}</small>"
    return f"<b>{figure}</b>" if best else figure


def _gallery(label: str, run: Run, model: Ensemble | Mixture, dataset: Dataset) -> str:
    """Some test images that fell and some that stood: clean, attacked, and the
    perturbation, with the answers."""
    pool = draw(dataset.test, min(GALLERY_POOL, len(dataset.test)))
    device = next(model.parameters()).device
    x, y = pool.images().to(device), pool.y.to(device)
    eps = run.config["eps"]
    x_adv = PGD(eps, run.config["norm"], steps=20)(model, x, y)
    with attacked(model), torch.no_grad():
        clean, adversarial = (model(images).softmax(dim=1) for images in (x, x_adv))
    right, stands = (answers.argmax(dim=1) == y for answers in (clean, adversarial))
    fell, stood = ((right & which).nonzero().squeeze(1).tolist() for which in (~stands, stands))
    chosen = (fell[: GALLERY // 2] + stood)[:GALLERY] or list(range(min(GALLERY, len(x))))
    noise = (x_adv - x).flatten(1)
    noise = (0.5 + 0.5 * noise / noise.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)).view_as(x)
    rows = []
    for title, images, answers in (
        ("clean", x, clean),
        (f"attacked, {format_eps(eps)}", x_adv, adversarial),
        ("perturbation", noise, None),
    ):
        cells = [
            _figure(images[i], dataset, y[i], None if answers is None else answers[i])
            for i in chosen
        ]
        rows.append(f"<tr><th>{title}</th>{''.join(cells)}</tr>")
    return (
        f"<h3>{escape(label)}</h3><p class=note>Of {int(right.sum())} images classified correctly, "
        f"the attack fools {len(fell)}: up to {GALLERY // 2} of those first, then some that stand. "
        "The perturbation is scaled to be seen.</p><div class=scroll><table "
        f"class=gallery>{''.join(rows)}</table></div>"
    )


def _figure(image: Tensor, dataset: Dataset, target: Tensor, answer: Tensor | None) -> str:
    caption = ""
    if answer is not None:
        k = int(answer.argmax())
        verdict = "right" if k == int(target) else "wrong"
        caption = (
            f"<figcaption class={verdict}>{escape(dataset.classes[k])} "
            f"{float(answer[k]):.0%}</figcaption>"
        )
    return (
        f"<td><figure><img class=pixels src='{png(image)}' alt='test image'>{caption}</figure></td>"
    )


def _configuration(labels: Sequence[str], runs: Sequence[Run]) -> str:
    keys = (
        *(
            "recipe",
            "model",
            "rounds",
            "epochs",
            "later_epochs",
            "batch_size",
            "lr",
            "later_lr",
            "step_size",
            "seed",
        ),
        *("validation", "select_on", "first", "joined", "eps"),
    )
    parts = ("steps", "schedule", "ema", "clip", "awp", "smoothing", "cutmix", "padding", "flip")
    rows = []
    for key in (*keys, *parts):
        inner = {"recipe": "summary", "first": "run"}.get(key)
        values = [
            (saved_options(run.config) if key in parts else run.config).get(key) for run in runs
        ]
        values = [value[inner] if inner and value else value for value in values]
        values = [
            ", ".join(part["run"] for part in value) if key == "joined" and value else value
            for value in values
        ]
        if all(value is None for value in values) or (key in parts and not any(values)):
            continue
        rows.append([key, *(escape(str(value)) for value in values)])
    commands = " ".join(escape(str(run.folder)) for run in runs)
    versions = runs[0].config["versions"]
    return (
        f"<h2>How it was made</h2>{table(['', *map(escape, labels)], rows, ' class=plain')}"
        f"<p class=note><code>mrboost report {commands}</code>, mrboost {__version__}; trained "
        f"with mrboost {escape(str(versions['mrboost']))} and torch "
        f"{escape(str(versions['torch']))}.</p>"
    )
