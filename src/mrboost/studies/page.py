"""The page of a study, in Markdown and HTML: the tables, the plots, and how they were made.

Its words stand in the templates: ``page.md`` and ``page.html``, and the lines of ``caveats.txt``
and ``made.txt``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from mrboost import __version__
from mrboost.files import write_texts
from mrboost.plots import figures as plots
from mrboost.plots.html import render
from mrboost.progress import folded

from .catalogue import SCALES, STUDIES, Figures
from .plan import Request
from .tables import Trained, claims_table, main_table, means, paired_table, values_of

_HERE = Path(__file__).parent
_NOTES = (
    "Where the paper contradicts itself, leaves something open, or differs from its authors' "
    "release"
)


def write_page(request: Request, command: str) -> tuple[Path, Path]:
    """Write the page on what is there by now into ``request.out``.

    Args:
        request: the study.
        command: what the page says it was made by.

    Returns:
        The paths of the Markdown and of the HTML page; the plots are beside them.
    """
    study, out = request.study, request.out
    runs = [(training, training.trained_run()) for training in request.trainings()]
    trained = [Trained(training, run) for training, run in runs if run is not None]
    values = values_of(request, trained)
    ours = means(values)
    tables = [
        main_table(request, trained, values),
        claims_table(study.claims, study.figures, ours),
        paired_table(study.claims, trained),
    ]
    figures = _plots(request, trained, ours)
    doubts = sorted({doubt for one in trained for doubt in one.doubts})
    page = {
        "study": study,
        "request": request,
        "caveats": _lines("caveats.txt", request, trained),
        "tables": [table for table in tables if table.rows],
        "plots": figures,
        "lists": {
            "Reasons to doubt these figures": doubts,
            _NOTES: study.notes,
            "How it was made": [f"`{command}`", *_lines("made.txt", request, trained)],
        },
    }
    pages = out / f"{study.name}.md", out / f"{study.name}.html"
    write_texts(
        {path: render(_HERE / f"page{path.suffix}", **page) for path in pages}
        | {out / f"{study.name}-{name}.svg": svg for name, svg in figures.items()}
    )
    return pages


def _lines(template: str, request: Request, trained: Sequence[Trained]) -> list[str]:
    """What stands between these figures and the paper's, and how they were made."""
    study, trainings, runs = request.study, request.trainings(), [one.run for one in trained]
    networks = {t.options["model"] for t in trainings} - {row.model for row in study.rows}
    made_with = [run.config["versions"] for run in runs]
    by_row = {
        one.label: [other for other in trained if other.label == one.label] for one in trained
    }
    text = render(
        _HERE / template,
        request=request,
        data=sorted({(t.data, Path(t.data).name, t.paper_data) for t in trainings}),
        networks=sorted(networks) if networks - {study.model} else (),
        on_test=any(t.options.get("select_on") == "test" for t in trainings),
        states=[one.training.state() for one in trained],
        trainings=len(trainings),
        versions=sorted({f"mrboost {v['mrboost']}, torch {v['torch']}" for v in made_with}),
        page_version=f"mrboost {__version__}, torch {torch.__version__}",
        hardware=sorted({name for run in runs for name in run.results.get("hardware", [])}),
        training=sum(sum(one.seconds) for one in trained),
        evaluation=sum(o.get("seconds", 0) for one in trained for o in one.outcomes.values()),
        shared=any("first" in run.config for run in runs),
        by_row={
            row: sum(sum(one.seconds) for one in found) / len({one.seed for one in found})
            for row, found in by_row.items()
        },
    )
    return text.splitlines()


def _plots(request: Request, trained: Sequence[Trained], ours: Figures) -> dict[str, str]:
    """The paper's plots of our numbers, as SVG text by name."""
    if request.study.plot == "epochs" and trained:
        first = {one.label: one for one in reversed(trained)}  # the first seed's
        metrics = {label: [first[label].run.metrics()] for label in sorted(first)}
        part = trained[0].training.options.get("select_on", "validation")
        return {"epochs": plots.training_curves(metrics, part)}
    if request.study.plot == "rounds":
        rounds = {row: _rounds(found) for row, found in ours.items()}
        if any(len(scores) > 1 for scores in rounds.values()):
            return {"rounds": plots.round_curves(rounds, "test")}
    return {}


def _rounds(figures: Mapping[str, float]) -> list[dict[str, object]]:
    """A row's accuracies by members, clean and under PGD-20, as a run's results hold them."""
    found: list[dict[str, object]] = []
    for column, clean in figures.items():
        place, _, measure = column.rpartition("/")
        attacked = figures.get(f"{place}/pgd-20")
        if measure == "clean" and attacked is not None:
            scores = {"clean": clean, "pgd-20": attacked}
            accuracies = {name: {"accuracy": score / 100} for name, score in scores.items()}
            found.append({"round": int(place.split("/")[2]), **accuracies})
    return found


def listing() -> str:
    """The studies and the scales, one line each."""
    lines = [f"{name:<14} {study.title} ({study.place})" for name, study in STUDIES.items()]
    scales = [f"--scale {name:<6} {scale.summary}" for name, scale in SCALES.items()]
    return "\n".join(folded(line, 15) for line in [*lines, "", *scales])
