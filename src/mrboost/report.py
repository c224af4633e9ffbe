"""One self-contained HTML page on one or several runs: figures to read, not raw numbers to decode.

The page embeds its plots and images; it loads nothing. What it measures itself (the curve over eps) is kept in the
run's results.json, so that a second page is quick.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import __version__, plots
from .attacks import PGD, attacked, named
from .curves import probability_margins, robustness_curve
from .data import Dataset, Split
from .ensemble import Ensemble, Mixture
from .errors import InputError
from .outcomes import format_eps, worst_case
from .results import draw, load_data, load_model
from .runs import Run
from .storage import replace_file

CURVE_ATTACK = "pgd-20"
CURVE_RADII = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # of the training eps
GALLERY, GALLERY_POOL = 10, 200
MOST_CLASSES = 20  # for the table by class
WORST = "worst case"


def write_report(
    run_dirs: Sequence[str | Path],
    out: str | Path,
    *,
    n: int = 500,
    device: str = "auto",
    data_dir: str | Path | None = None,
    verify: bool = True,
    plots_dir: str | Path | None = None,
    progress: bool = False,
) -> Path:
    """Write the page on these runs to ``out`` and return its path.

    ``n`` test images make the curve over eps. With ``plots_dir`` the plots are kept there too, as SVG files.
    """
    runs = [Run.open(folder) for folder in run_dirs]
    if len({str(run.config["data"]) for run in runs}) > 1:
        raise InputError(
            f"the runs are on different data ({', '.join(r.config['data'] for r in runs)}): report each alone"
        )
    dataset = load_data(runs[0], data_dir, verify=verify)
    labels = _labels(runs)
    test, measured, galleries = draw(dataset.test, min(n, len(dataset.test))), {}, []
    for label, run in zip(labels, runs, strict=True):
        model = load_model(run, "best", device)
        measured[label] = _measure(run, model, test, progress)
        galleries.append(_gallery(label, run, model, dataset))
    metrics = {label: run.metrics() for label, run in zip(labels, runs, strict=True)}
    first = runs[0].config
    held_out = "validation" if first["select_on"] == "validation" else "test (used for selection: optimistic)"
    figures = {
        "robustness": plots.robustness_curves(
            {k: m["points"] for k, m in measured.items()}, first["eps"], first["norm"]
        ),
        "margins": plots.margin_curves({k: m["margins"] for k, m in measured.items()}, first["eps"]),
        "training": plots.training_curves(metrics, held_out),
        "loss": plots.loss_curves(metrics),
    }
    rounds = {label: run.results.get("rounds", []) for label, run in zip(labels, runs, strict=True)}
    if any(len(rows) > 1 for rows in rounds.values()):
        figures["rounds"] = plots.round_curves(rounds, held_out)
    body = [
        _headline(labels, runs, dataset),
        _results_table(runs),
        "<h2>How much attack it withstands, and by what margin</h2>",
        f"<div class=row>{embedded(figures['robustness'])}{embedded(figures['margins'])}</div>",
        f"<p class=note>{len(test):,} test images, best weights, {CURVE_ATTACK}. Left: each radius attacks the images "
        "that survived the smaller ones. Right: the probability of the true class minus the largest other one on "
        "attacked images; the height at 0 is the share that the attack fools.</p>",
        f"<h2>Round by round</h2>{embedded(figures['rounds'])}" if "rounds" in figures else "",
        _class_table(runs, dataset),
        "<h2>Training</h2>",
        f"<div class=row>{embedded(figures['training'])}{embedded(figures['loss'])}</div>",
        "<h2>What the attack does</h2>",
        *galleries,
        _configuration(labels, runs),
    ]
    files = {Path(out): html_page("\n".join(body))}
    if plots_dir is not None:
        files |= {Path(plots_dir) / f"{name}.svg": svg for name, svg in figures.items()}
    for path, text in files.items():
        if path.is_dir():
            raise InputError(f"cannot write {str(path)!r}: it is a folder: name a file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode())
        except OSError as error:
            raise InputError(f"cannot write {str(path)!r}: {error.strerror}: choose another place") from None
    return Path(out)


def _labels(runs: Sequence[Run]) -> list[str]:
    """The recipes' names where they tell the runs apart, the folders' otherwise."""
    names = [str(run.config["recipe"]["name"]) for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def _measure(run: Run, model: Ensemble | Mixture, test: Split, progress: bool) -> dict[str, Any]:
    """The curve over eps and the margins under attack on these images; kept in results.json for the next page."""
    wanted = {"attack": CURVE_ATTACK, "norm": run.config["norm"], "n": len(test), "of": run.fingerprint()}
    kept = run.results.get("curve", {})
    if all(kept.get(key) == value for key, value in wanted.items()):
        return dict(kept)
    radii = [scale * run.config["eps"] for scale in CURVE_RADII]
    if run.config["norm"] == "Linf":
        radii = sorted({min(radius, 1.0) for radius in radii})
    x, y = test.images(), test.y
    points = robustness_curve(model, x, y, radii, attack=CURVE_ATTACK, norm=run.config["norm"], progress=progress)
    margins = probability_margins(model, x, y, named(CURVE_ATTACK, run.config["eps"], run.config["norm"]))
    curve = {**wanted, "points": points, "margins": [round(value, 4) for value in margins]}
    run.save_results({**run.results, "curve": curve})
    return curve


def _headline(labels: Sequence[str], runs: Sequence[Run], dataset: Dataset) -> str:
    config = runs[0].config
    shape = "×".join(str(size) for size in dataset.shape)
    return (
        f"<h1>Robustness of {escape(', '.join(labels))}</h1>"
        f"<p>Trained on <b>{escape(config['data'])}</b> ({len(dataset.train):,} training and {len(dataset.test):,} "
        f"test images of {shape}, {dataset.num_classes} classes) against {config['norm']} perturbations of "
        f"eps = {format_eps(config['eps'])}.</p>"
    )


@dataclass(frozen=True)
class _Comparison:
    """Every evaluation of the runs in one table; figures are comparable where ball and images agree."""

    attacks: list[str]
    rows: list[tuple[str, dict[str, Any], dict[str, dict[str, Any]]]]  # run, evaluation, outcomes by attack

    @classmethod
    def of(cls, runs: Sequence[Run]) -> _Comparison:
        rows, attacks = [], []
        for label, run in zip(_labels(runs), runs, strict=True):
            for evaluation in run.results.get("evaluations", []):
                found = {outcome["attack"]: outcome for outcome in evaluation["outcomes"]}
                if len(found) > 2 and all("correct" in outcome for outcome in found.values()):
                    accuracy, interval = worst_case([outcome["correct"] for outcome in found.values()])
                    found[WORST] = {"accuracy": accuracy, "interval": interval}
                attacks += [name for name in found if name not in attacks]
                rows.append((label, evaluation, found))
        return cls(sorted(attacks, key=lambda name: name == WORST), rows)

    def head(self) -> list[str]:
        return ["run", "members", "weights", "ball", "images", *self.attacks]

    def facts(self, row: int) -> list[str]:
        label, evaluation, _ = self.rows[row]
        ball = f"{evaluation['norm']} {format_eps(evaluation['eps'])}"
        return [label, str(evaluation["members"]), evaluation["weights"], ball, f"{evaluation['n']:,}"]

    def is_best(self, row: int, attack: str) -> bool:
        _, own, outcomes = self.rows[row]
        same = [found for _, other, found in self.rows if all(other[k] == own[k] for k in ("eps", "norm", "n"))]
        rivals = [found[attack]["accuracy"] for found in same if attack in found]
        return len(rivals) > 1 and bool(outcomes[attack]["accuracy"] == max(rivals))


def text_table(run_dirs: Sequence[str | Path]) -> str:
    """The evaluations of these runs side by side, in per cent; * marks the best of a column."""
    table = _Comparison.of([Run.open(folder) for folder in run_dirs])
    lines = [table.head()]
    for i, (_, _, found) in enumerate(table.rows):
        cells = [
            f"{100 * found[name]['accuracy']:.2f}{'*' if table.is_best(i, name) else ' '}" if name in found else "–"
            for name in table.attacks
        ]
        lines.append(table.facts(i) + cells)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _results_table(runs: Sequence[Run]) -> str:
    table = _Comparison.of(runs)
    if not table.rows:
        commands = "<br>".join(f"<code>mrboost evaluate {escape(str(run.folder))}</code>" for run in runs)
        return f"<p class=note>Not evaluated yet. For the table of test accuracies run<br>{commands}</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in table.head())
    lines = []
    for i, (_, _, found) in enumerate(table.rows):
        facts = "".join(f"<td>{escape(fact)}</td>" for fact in table.facts(i))
        cells = "".join(_cell(found[k], table.is_best(i, k)) if k in found else "<td>–</td>" for k in table.attacks)
        lines.append(f"<tr>{facts}{cells}</tr>")
    return (
        f"<h2>Accuracy on test images</h2><table><tr>{head}</tr>{''.join(lines)}</table>"
        "<p class=note>In per cent, with half the width of the 95 % interval; the best of a column is bold. Under an "
        "attack: the share of images that stay correctly classified. An attack gives an upper bound on robustness: a "
        "stronger one may find more. Worst case: each image counts as its worst outcome over the attacks.</p>"
        + _doubts(table)
    )


def _doubts(table: _Comparison) -> str:
    """What the evaluations give to doubt, run by run."""
    found: dict[str, None] = {}  # an ordered set: several evaluations of a run see the same
    for label, evaluation, _ in table.rows:
        for doubt in evaluation.get("doubts", []):
            found[f"<li>{escape(label)}: {escape(doubt['message'])}</li>"] = None
    return f"<h2>Reasons to doubt these figures</h2><ul>{''.join(found)}</ul>" if found else ""


def _class_table(runs: Sequence[Run], dataset: Dataset) -> str:
    """Clean and attacked accuracy of each class, under the strongest attack that was evaluated."""
    if dataset.num_classes > MOST_CLASSES:
        return ""
    lines = []
    for label, evaluation, found in _Comparison.of(runs).rows:
        hardest = min((o for o in found.values() if "per_class" in o), key=lambda outcome: outcome["accuracy"])
        for outcome in [found["clean"], hardest] if "clean" in found else [hardest]:
            cells = "".join("<td>–</td>" if v is None else f"<td>{100 * v:.0f}</td>" for v in outcome["per_class"])
            name = f"{label} ({evaluation['weights']}), {outcome['attack']}"
            lines.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    if not lines:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in dataset.classes)
    table = f"<table><tr><th>accuracy, %</th>{head}</tr>{''.join(lines)}</table>"
    return f"<h2>Class by class</h2><div class=scroll>{table}</div>"


def _cell(outcome: dict[str, Any], best: bool) -> str:
    low, high = outcome["interval"]
    figure = f"{100 * outcome['accuracy']:.2f} <small>± {50 * (high - low):.1f}</small>"
    return f"<td>{f'<b>{figure}</b>' if best else figure}</td>"


def _gallery(label: str, run: Run, model: Ensemble | Mixture, dataset: Dataset) -> str:
    """Some test images that fell and some that stood: clean, attacked, and the perturbation, with the answers."""
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
        cells = [_figure(images[i], dataset, y[i], None if answers is None else answers[i]) for i in chosen]
        rows.append(f"<tr><th>{title}</th>{''.join(cells)}</tr>")
    return (
        f"<h3>{escape(label)}</h3><p class=note>Of {int(right.sum())} images classified correctly, the attack fools "
        f"{len(fell)}: up to {GALLERY // 2} of those first, then some that stand. The perturbation is scaled to be "
        "seen.</p>"
        f"<div class=scroll><table class=gallery>{''.join(rows)}</table></div>"
    )


def _figure(image: Tensor, dataset: Dataset, target: Tensor, answer: Tensor | None) -> str:
    caption = ""
    if answer is not None:
        k = int(answer.argmax())
        verdict = "right" if k == int(target) else "wrong"
        caption = f"<figcaption class={verdict}>{escape(dataset.classes[k])} {float(answer[k]):.0%}</figcaption>"
    return f"<td><figure><img class=pixels src='{_png(image)}' alt='test image'>{caption}</figure></td>"


def _png(image: Tensor) -> str:
    from PIL import Image

    values = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    if values.shape[2] not in (1, 3):
        values = values[:, :, :1]
    picture = Image.fromarray(np.squeeze(values, axis=2) if values.shape[2] == 1 else values)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def embedded(svg: str) -> str:
    """A figure as an image that the page holds itself."""
    return f"<img class=plot alt='plot' src='data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}'>"


def _configuration(labels: Sequence[str], runs: Sequence[Run]) -> str:
    keys = (
        *("recipe", "model", "rounds", "epochs", "later_epochs", "batch_size", "lr", "later_lr", "step_size", "seed"),
        *("validation", "select_on"),
    )
    rows = []
    for key in keys:
        values = [run.config[key]["summary"] if key == "recipe" else run.config.get(key) for run in runs]
        if all(value is None for value in values):
            continue
        rows.append(f"<tr><td>{key}</td>{''.join(f'<td>{escape(str(value))}</td>' for value in values)}</tr>")
    head = "".join(f"<th>{escape(label)}</th>" for label in labels)
    commands = " ".join(escape(str(run.folder)) for run in runs)
    versions = runs[0].config["versions"]
    return (
        f"<h2>How it was made</h2><table class=plain><tr><th></th>{head}</tr>{''.join(rows)}</table>"
        f"<p class=note><code>mrboost report {commands}</code>, mrboost {__version__}; trained with mrboost "
        f"{escape(str(versions['mrboost']))} and torch {escape(str(versions['torch']))}.</p>"
    )


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1f2937;background:#f8fafc;margin:0}
main{max-width:1120px;margin:2rem auto;padding:0 1.5rem}
h1{font-size:1.7rem;margin:0 0 .3rem} h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
table{border-collapse:collapse;background:#fff;border:1px solid #e2e8f0} th,td{padding:.4rem .8rem;text-align:right}
th{font-weight:600;color:#475569;font-size:.85rem;border-bottom:1px solid #e2e8f0}
td:first-child,th:first-child{text-align:left} tr+tr td{border-top:1px solid #f1f5f9} small{color:#64748b}
.plain td,.plain th{text-align:left} .note{color:#64748b;font-size:.85rem;max-width:75ch}
.row{display:flex;flex-wrap:wrap;gap:1rem} .plot{background:#fff;border:1px solid #e2e8f0;max-width:100%;width:540px}
.scroll{overflow-x:auto} .gallery td,.gallery th{padding:.3rem .35rem;border:0;text-align:center}
.gallery th{text-align:left;white-space:nowrap} figure{margin:0}
.pixels{width:72px;height:72px;image-rendering:pixelated;display:block;margin:auto}
figcaption{font-size:.72rem;max-width:84px;margin:auto} .right{color:#047857} .wrong{color:#b91c1c;font-weight:600}
code{background:#eef2f7;padding:.1rem .3rem;border-radius:3px}
"""


def html_page(body: str, title: str = "mrboost report") -> str:
    """A page that loads nothing, in the one style."""
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<style>{_STYLE}</style></head><body><main>\n{body}\n</main></body></html>\n"
    )
