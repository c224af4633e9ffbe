"""The page of a study, in Markdown and HTML: the tables, the plots, and how they were made."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from markupsafe import Markup, escape

from mrboost import __version__
from mrboost.files import write_texts
from mrboost.plots import figures as plots
from mrboost.plots.html import render

from .catalogue import SCALES, STUDIES
from .paper import Figures, paper_results
from .plan import Request
from .tables import Table, Trained, claims_table, main_table, means, paired_table, values_of

NOTES = (
    "Where the paper contradicts itself, leaves something open, or differs from its authors' "
    "release"
)


@dataclass(frozen=True)
class Page:
    """What is written: a title, a line below it, caveats, tables, plots as SVG text by name, and
    lists by title. `code` and **bold** are marked as in Markdown."""

    title: str
    below: str
    caveats: Sequence[str]
    tables: Sequence[Table]
    plots: Mapping[str, str]
    lists: Mapping[str, Sequence[str]]

    def markdown(self, stem: str) -> str:
        parts = [f"# {self.title}", self.below, *(f"> {caveat}" for caveat in self.caveats)]
        for table in self.tables:
            lines = [table.head, ["---"] * len(table.head), *table.rows]
            parts += [table.title, "\n".join(f"| {' | '.join(line)} |" for line in lines)]
        parts += [f"![{name}]({stem}-{name}.svg)" for name in self.plots]
        for title, items in self.lists.items():
            parts += [f"## {title}", "\n".join(f"- {item}" for item in items)]
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        return render(Path(__file__).with_name("page.html"), page=self, marked=_marked)

    def write(self, out: Path, stem: str) -> tuple[Path, Path]:
        """Write the Markdown and the HTML page, and the plots; the pages' paths."""
        markdown, html = out / f"{stem}.md", out / f"{stem}.html"
        write_texts(
            {markdown: self.markdown(stem), html: self.html()}
            | {out / f"{stem}-{name}.svg": svg for name, svg in self.plots.items()}
        )
        return markdown, html


def _marked(text: str) -> Markup:
    """Markdown's `code` and **bold** as HTML."""
    marked = re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
    return Markup(re.sub(r"\*\*([^*]*)\*\*", r"<b>\1</b>", marked))


def compose(request: Request, command: str) -> Page:
    """The page on what is there by now."""
    study = request.study
    paper = paper_results(study.name)
    trained = [
        Trained(training, run)
        for training in request.trainings()
        if (run := training.trained_run()) is not None
    ]
    values = values_of(request, trained)
    tables = [
        main_table(request, paper, trained, values),
        claims_table(paper, means(values)),
        paired_table(paper, trained),
    ]
    lists = {
        "Reasons to doubt these figures": _doubts(trained),
        NOTES: paper.notes,
        "How it was made": [f"`{command}`", *_provenance(request, trained)],
    }
    changed = "; not all of it here, see below" if request.options else ""
    scale = f"{request.scale.name} ({request.scale.summary}{changed})"
    return Page(
        study.title,
        f"`{study.name}` at scale {scale}, beside {paper.place}.",
        _caveats(request),
        [table for table in tables if table.rows],
        _plots(request, trained, means(values)),
        {title: items for title, items in lists.items() if items},
    )


def _doubts(trained: Sequence[Trained]) -> list[str]:
    found = set()
    for one in trained:
        for evaluation in one.run.results.get("evaluations", []):
            for doubt in evaluation.get("doubts", []):
                found.add(f"{one.training.label}: {doubt['message']}")
    return sorted(found)


def _provenance(request: Request, trained: Sequence[Trained]) -> list[str]:
    """Seeds, versions, hardware and seconds."""
    trainings = request.trainings()
    finished = sum(one.training.is_done() for one in trained)
    by_row: dict[str, dict[int, float]] = {}
    for one in trained:
        by_seed = by_row.setdefault(one.training.label, {})
        seed = one.training.options["seed"]
        by_seed[seed] = by_seed.get(seed, 0) + one.seconds
    training = sum(one.seconds for one in trained)
    evaluation = sum(o.get("seconds", 0) for one in trained for o in one.outcomes.values())
    shared = ""
    if any("first" in one.run.config for one in trained):
        shared = ", a first round that rows share in each of them"
    hardware = sorted({name for one in trained for name in one.run.results.get("hardware", [])})
    rows = ", ".join(
        f"{row} {statistics.mean(seconds.values()):.0f} s" for row, seconds in by_row.items()
    )
    return [
        f"{finished} of {len(trainings)} trainings are finished; seeds "
        f"{', '.join(map(str, request.seeds))}.",
        _versions(trained),
        f"Hardware: {', '.join(hardware) or 'none yet'}.",
        f"Cost: {training:.0f} s of training (with its validation{shared}) and {evaluation:.0f} s "
        "of evaluation. Those are seconds of the device where each had it to itself; what ran "
        "side by side shared them.",
        f"Training by row, each seed: {rows}.",
    ]


def _versions(trained: Sequence[Trained]) -> str:
    made = set()
    for one in trained:
        versions = one.run.config["versions"]
        made.add(f"mrboost {versions['mrboost']}, torch {versions['torch']}")
    page = f"mrboost {__version__}, torch {torch.__version__}"
    if not made:
        return f"Made with {page}."
    return f"Trained with {'; '.join(sorted(made))}; page by {page}."


def _caveats(request: Request) -> list[str]:
    """What stands between these figures and the paper's."""
    scale, study, trainings = request.scale, request.study, request.trainings()
    found = []
    if scale.name == "smoke":
        found.append("**Its numbers mean nothing**: this scale shows that the study runs.")
    elif scale.name != "full":
        found.append(
            "**Not the paper's setting**: compare the rows with one another, not with the "
            "paper's numbers."
        )
    for data, paper_data in sorted({(t.data, t.paper_data) for t in trainings}):
        if data != paper_data:
            caveat = f"Trained on `{Path(data).name}` in the place of {paper_data}."
            if "jpeg" in data:
                caveat += " A JPEG mirror's accuracies lie some points below the originals'."
            found.append(caveat)
    if request.options:
        changed = ", ".join(f"{key} = {value}" for key, value in request.options.items())
        found.append(f"Options other than the scale's: {changed}.")
    swapped = {t.options["model"] for t in trainings} - {row.model for row in study.rows}
    if swapped - {study.model}:
        found.append(f"Networks: {', '.join(sorted(swapped))}; the paper's is {study.model}.")
    on_test = any(t.options.get("select_on") == "test" for t in trainings)
    if on_test and "best" in study.weights:
        found.append(
            "The best epoch was chosen on the test images, as in the paper: its accuracy is "
            "optimistic."
        )
    used = {*request.also, *(attack for t in trainings for attack in t.attacks)}
    for theirs, ours in scale.attacks.items():
        if theirs in used:
            found.append(f"Attack {ours} in the place of {theirs}.")
    return found


def _plots(request: Request, trained: Sequence[Trained], ours: Figures) -> dict[str, str]:
    if not trained:
        return {}
    if request.study.plot == "epochs":
        first = {one.training.label: one for one in reversed(trained)}  # the first seed's
        metrics = {label: first[label].run.metrics() for label in sorted(first)}
        part = str(trained[0].training.options.get("select_on", "validation"))
        return {"epochs": plots.training_curves(metrics, part)}
    if request.study.plot == "rounds":
        rounds = {row: _rounds(found) for row, found in ours.items()}
        several = {row: scores for row, scores in rounds.items() if len(scores) > 1}
        return {"rounds": plots.round_curves(several, "test")} if several else {}
    return {}


def _rounds(figures: Mapping[str, float]) -> list[dict[str, object]]:
    """A row's accuracies by members, clean and under PGD-20."""
    found: list[dict[str, object]] = []
    for column, clean in figures.items():
        place, _, measure = column.rpartition("/")
        attacked = figures.get(f"{place}/pgd-20")
        if measure == "clean" and attacked is not None:
            found.append(
                {
                    "round": int(place.split("/")[2]),
                    "clean": {"accuracy": clean / 100},
                    "pgd-20": {"accuracy": attacked / 100},
                }
            )
    return found


def listing() -> str:
    """The studies and the scales, one line each."""
    lines = [
        f"{name:<14} {study.title} ({paper_results(name).place})" for name, study in STUDIES.items()
    ]
    scales = [f"--scale {name:<6} {scale.summary}" for name, scale in SCALES.items()]
    return "\n".join([*lines, "", *scales])
