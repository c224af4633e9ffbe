"""The page of a study, Markdown and HTML: our numbers beside the paper's, its claims on ours,
and how it was made."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import torch

from mrboost import __version__
from mrboost.files import write_texts
from mrboost.plots import figures as plots
from mrboost.plots.html import embedded, html_page, table
from mrboost.runs import Run

from .declared import SCALES, STUDIES
from .figures import Table
from .pairs import column_labels, paired
from .paper import Figures, Report, report
from .planning import STRONG, Request, Training
from .running import device_name

NOTES = (
    "Where the paper contradicts itself, leaves something open, or differs from its authors' "
    "release"
)
MADE = "How it was made"


@dataclass(frozen=True)
class Page:
    """What is written: a title, a line below it, caveats, tables, plots as SVG text by
    name, and lists by title."""

    title: str
    below: str
    caveats: Sequence[str]
    tables: Sequence[Table]
    plots: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def markdown(self, stem: str) -> str:
        parts = [f"# {self.title}", self.below, *(f"> {caveat}" for caveat in self.caveats)]
        for one in self.tables:
            lines = [one.head, ["---"] * len(one.head), *one.rows]
            parts += [one.title, "\n".join(f"| {' | '.join(line)} |" for line in lines)]
        parts += [f"![{name}]({stem}-{name}.svg)" for name in self.plots]
        for title, items in self.lists.items():
            parts += [f"## {title}", "\n".join(f"- {item}" for item in items)]
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        parts = [f"<h1>{_html(self.title)}</h1><p>{_html(self.below)}</p>"]
        parts += [f"<p class=note><b>{_html(caveat)}</b></p>" for caveat in self.caveats]
        for one in self.tables:
            body = table(map(_html, one.head), (map(_html, row) for row in one.rows))
            parts.append(f"<p class=note>{_html(one.title)}</p><div class=scroll>{body}</div>")
        parts.append(f"<div class=row>{''.join(map(embedded, self.plots.values()))}</div>")
        for title, items in self.lists.items():
            parts.append(
                f"<h2>{_html(title)}</h2><ul>{''.join(f'<li>{_html(item)}</li>' for item in items)}</ul>"  # noqa: E501
            )
        return html_page("\n".join(parts), self.title)

    def write(self, out: Path, stem: str) -> tuple[Path, Path]:
        """The Markdown and the HTML page."""
        files = {out / f"{stem}.md": self.markdown(stem), out / f"{stem}.html": self.html()}
        write_texts(files | {out / f"{stem}-{name}.svg": svg for name, svg in self.plots.items()})
        return out / f"{stem}.md", out / f"{stem}.html"


def _html(text: str) -> str:
    marked = re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]*)\*\*", r"<b>\1</b>", marked)


def compose(request: Request, command: str, device: str, *, progress: bool = False) -> Page:
    """The page on what is there by now."""
    study, paper = request.study, report(request.study.name)
    if study.draw is not None:
        began = time.perf_counter()
        drawing = study.draw(request.scale.name, progress=progress)
        cost = f"Cost: {time.perf_counter() - began:.0f} s of the CPU."
        made = [f"`{command}`", _versions([]), f"Hardware: {device_name(device)}.", cost]
        return Page(
            study.title,
            _below(request, paper),
            (),
            drawing.tables,
            drawing.plots,
            {NOTES: paper.notes, MADE: made},
        )
    trainings = request.trainings()
    there = [training for training in trainings if training.is_trained()]
    finished = sum(training.is_done() for training in there)
    runs = [run for training in there if (run := training.run()) is not None]
    measures: dict[str, dict[str, list[float]]] = {row.label: {} for row in study.rows}
    for one in there:
        for column, value in one.measures().items():
            measures[one.label].setdefault(column, []).append(value)
    ours = {
        row: {c: statistics.mean(values) for c, values in found.items()}
        for row, found in measures.items()
    }
    trained: dict[str, dict[int, float]] = {row.label: {} for row in study.rows}
    for t, run in zip(there, runs, strict=True):
        of, seed = trained[t.label], t.options["seed"]
        of[seed] = of.get(seed, 0.0) + sum(row["seconds"] for row in run.metrics())
    by_row = {row: statistics.mean(seconds.values()) for row, seconds in trained.items() if seconds}
    shared = (
        ", a first round that rows share in each of them"
        if any("first" in run.config for run in runs)
        else ""
    )
    evaluations = [
        (t, e)
        for t, run in zip(there, runs, strict=True)
        for e in run.results.get("evaluations", [])
    ]
    evaluation = sum(outcome.get("seconds", 0) for t in there for outcome in t.outcomes().values())
    hardware = sorted({name for run in runs for name in run.results.get("hardware", [])})
    lists: dict[str, Sequence[str]] = {
        "Reasons to doubt these figures": sorted(
            {
                f"{t.label}: {doubt['message']}"
                for t, e in evaluations
                for doubt in e.get("doubts", [])
            }
        ),
        NOTES: paper.notes,
        MADE: [
            f"`{command}`",
            f"{finished} of {len(trainings)} trainings are finished; seeds "
            f"{', '.join(map(str, request.seeds))}.",
            _versions(runs),
            f"Hardware: {', '.join(hardware) or 'none yet'}.",
            f"Cost: {sum(sum(seconds.values()) for seconds in trained.values()):.0f} s of training "
            f"(with its validation{shared}) and {evaluation:.0f} s of evaluation. Those are "
            "seconds of the device where each had it to itself; what ran side by side shared "
            "them.",
            "Training by row, each seed: "
            f"{', '.join(f'{row} {seconds:.0f} s' for row, seconds in by_row.items())}.",
        ],
    }
    tables = [
        _table(request, paper, trainings, there, measures),
        *_claims(paper, ours),
        *paired(paper, there),
    ]
    lists = {title: items for title, items in lists.items() if items}
    return Page(
        study.title,
        _below(request, paper),
        _caveats(request, trainings),
        tables,
        _plots(request, there, ours),
        lists,
    )


def _below(request: Request, paper: Report) -> str:
    changed = "; not all of it here, see below" if request.options else ""
    scale = f"{request.scale.name} ({request.scale.summary}{changed})"
    return f"`{request.study.name}` at scale {scale}, beside {paper.place}."


def _versions(runs: Sequence[Run]) -> str:
    made = sorted(
        {
            f"mrboost {v['mrboost']}, torch {v['torch']}"
            for run in runs
            for v in [run.config["versions"]]
        }
    )
    page = f"mrboost {__version__}, torch {torch.__version__}"
    return f"Trained with {'; '.join(made)}; page by {page}." if made else f"Made with {page}."


def _caveats(request: Request, trainings: Sequence[Training]) -> list[str]:
    scale, found = request.scale, []
    if scale.name == "smoke":
        found.append("**Its numbers mean nothing**: this scale shows that the study runs.")
    elif scale.name != "full":
        found.append(
            "**Not the paper's setting**: compare the rows with one another, not with the "
            "paper's numbers."
        )
    for data, paper_data in sorted({(t.data, t.paper_data) for t in trainings}):
        if data != paper_data:
            mirror = (
                " A JPEG mirror's accuracies lie some points below the originals'."
                if "jpeg" in data
                else ""
            )
            found.append(f"Trained on `{Path(data).name}` in the place of {paper_data}.{mirror}")
    changed = [f"{key} = {value}" for key, value in request.options.items()]
    if changed:
        found.append(f"Options other than the scale's: {', '.join(changed)}.")
    swapped = {t.options["model"] for t in trainings} - {
        m for r in request.study.rows if (m := r.model)
    }
    if swapped - {request.study.model}:
        found.append(
            f"Networks: {', '.join(sorted(swapped))}; the paper's is {request.study.model}."
        )
    if "best" in request.study.weights and any(
        t.options.get("select_on") == "test" for t in trainings
    ):
        found.append(
            "The best epoch was chosen on the test images, as in the paper: its accuracy is "
            "optimistic."
        )
    used = {*request.also, *(attack for t in trainings for attack in t.attacks)}
    found += [
        f"Attack {ours} in the place of {paper}."
        for paper, ours in scale.attacks.items()
        if paper in used
    ]
    return found


def _table(
    request: Request,
    paper: Report,
    trainings: Sequence[Training],
    there: Sequence[Training],
    measures: Mapping[str, Mapping[str, list[float]]],
) -> Table:
    """Three lines for each row: ours, the paper's, the difference."""
    data, rounds = {t.paper_data for t in trainings}, max(t.options["rounds"] for t in trainings)
    columns = [
        c for c in paper.columns if c.split("/")[0] in data and int(c.split("/")[2]) <= rounds
    ]
    more = {c for found in measures.values() for c in found} - set(columns)
    columns += sorted(
        more,
        key=lambda column: [
            (len(part) if part.isdigit() else 0, part) for part in column.split("/")
        ],
    )
    rows, form = [], ".0f" if request.study.seconds else ".2f"
    for row in request.study.rows:
        ours, theirs = measures[row.label], paper.figures.get(row.label, {})
        rows.append([row.label, "ours", *(_spread(ours.get(column)) for column in columns)])
        rows.append(
            [
                "",
                "paper",
                *(f"{theirs[column]:{form}}" if column in theirs else "–" for column in columns),
            ]
        )
        differences = [
            f"{statistics.mean(ours[column]) - theirs[column]:+.2f}"
            if column in ours and column in theirs
            else "–"
            for column in columns
        ]
        rows.append(["", "difference", *differences])
    unit = _unit(request, there)
    if request.study.seconds:
        seconds = "Seconds of an epoch, the median after the first"
        unit = f"{seconds}. {unit}" if request.also else seconds
    spread = "; mean ± standard deviation over the seeds" if len(request.seeds) > 1 else ""
    return Table(f"{unit}{spread}.", ["method", "", *column_labels(columns)], rows)


def _unit(request: Request, there: Sequence[Training]) -> str:
    """What the figures are, and of how many test images."""
    attacks = {
        *request.also,
        *(a for row in request.study.rows for a in (row.attacks or request.study.attacks)),
    }
    # Of AutoAttack or not: were those all that there are?
    whole: dict[bool, set[bool]] = {False: set(), True: set()}
    for training in there:
        for column, outcome in training.outcomes().items():
            whole[column.endswith(f"/{STRONG}")].add(outcome["whole"])
    counts = [_count(request.images(""), whole[False])]
    if STRONG in attacks:
        counts.append(_count(request.images(STRONG), whole[True], f" ({STRONG})"))
    return f"Accuracy, %, on {', '.join(counts)}"


def _count(n: int | None, whole: set[bool], who: str = "") -> str:
    if n is None or whole == {True}:
        return f"all test images{who}"
    return (
        f"{n:,} test images{who}{', or all,' if True in whole else ''}: ± {98 / math.sqrt(n):.1f} "
        "at 50 %"
    )


def _spread(values: Sequence[float] | None) -> str:
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def _claims(paper: Report, ours: Figures) -> list[Table]:
    rows = []
    for claim in paper.claims:
        cells = []
        for figures in (paper.figures, ours):
            found = [difference for *_, difference in claim.differences(figures)]
            holds = sum(difference > 0 for difference in found)
            cells.append(
                f"{holds} of {len(found)}, least {min(found):+.2f}" if found else "not measured"
            )
        rows.append([claim.says, *cells])
    title = (
        "What the text says of these numbers: comparisons in which it holds, and the least surplus."
    )
    return (
        [Table(title, ["the paper says", "holds on its numbers", "holds on ours"], rows)]
        if rows
        else []
    )


def _plots(request: Request, there: Sequence[Training], ours: Figures) -> dict[str, str]:
    if not there or not request.study.plot:
        return {}
    if request.study.plot == "epochs":
        first = {t.label: t for t in reversed(there)}  # the first seed's
        metrics = {
            label: run.metrics()
            for label, t in sorted(first.items())
            if (run := t.run()) is not None
        }
        return {
            "epochs": plots.training_curves(
                metrics, str(there[0].options.get("select_on", "validation"))
            )
        }
    staged: dict[str, list[dict[str, object]]] = {}
    for row, found in ours.items():
        for column in found:
            data, which, members, _ = column.split("/")
            names = {name: f"{data}/{which}/{members}/{name}" for name in ("clean", "pgd-20")}
            if column == names["clean"] and names["pgd-20"] in found:
                scores = {name: {"accuracy": found[c] / 100} for name, c in names.items()}
                staged.setdefault(row, []).append({"round": int(members), **scores})
    several = {row: rows for row, rows in staged.items() if len(rows) > 1}
    return {"rounds": plots.round_curves(several, "test")} if several else {}


def plan(trainings: Sequence[Training]) -> str:
    """What each training is, and what is left of it to do."""
    lines = [f"trainings: {len(trainings)}, finished: {sum(t.is_done() for t in trainings)}"]
    for training in trainings:
        state = (
            "finished"
            if training.is_done()
            else "trained"
            if training.is_trained()
            else "to be trained"
        )
        lines += ["", f"{training}: {state}", f"  {training.command()}"]
        for which, members, n, attacks in training.stages():
            images = "all" if n is None else f"{n:,}"
            under = ", ".join(map(training.kept_as, attacks)) or "clean images alone"
            lines.append(f"  {which} weights, members {members}, {images} test images: {under}")
    return "\n".join(lines)


def listing() -> str:
    """The studies and the scales, one line each."""
    lines = [f"{name:<14} {study.title} ({report(name).place})" for name, study in STUDIES.items()]
    return "\n".join(
        [*lines, "", *(f"--scale {name:<6} {scale.summary}" for name, scale in SCALES.items())]
    )
