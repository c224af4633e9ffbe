"""Evaluations in a run's ``results.json``: a new one is merged with those that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from mrboost.evaluation import Evaluation
from mrboost.evaluation.doubts import AMONG_OUTCOMES, Doubt, contradictions
from mrboost.evaluation.result import same_images, worst_of
from mrboost.progress import note

from .folder import Run


def save_evaluation(run: Run, facts: Mapping[str, Any], result: Evaluation) -> Evaluation:
    """Add an evaluation to the run's results.

    Args:
        run: whose results they are.
        facts: what was evaluated: weights, members, images, and whether doubts were looked for.
        result: the outcomes.

    Returns:
        The evaluation, with doubts from what its outcomes and earlier ones say against each other.
    """
    new = {**facts, **result.to_dict()}
    try:
        with run.changing_results() as results:
            results["evaluations"] = _merged(results.get("evaluations", []), new)
    except OSError as error:  # a run that one may only read can be evaluated all the same
        note(f"note: the result is not kept in {str(run.folder)!r}: {error.strerror}")
        return result
    if not facts["checked"]:
        return result
    return replace(result, doubts=tuple(Doubt(**doubt) for doubt in new["doubts"]))


def _merged(kept: Sequence[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """All evaluations, the new one last and together with those of the same classifier, ball and
    images.

    A repeated attack replaces the older figure, and what was doubted of the model stays until it
    is checked again. Figures of a classifier that is no longer there, since its members were
    reweighted, are dropped.
    """
    others = []
    for old in kept:
        same_members = all(old[key] == new[key] for key in ("weights", "members"))
        if same_members and old.get("of") != new["of"]:
            continue
        same_ball = all(old[key] == new[key] for key in ("eps", "norm", "n"))
        if same_members and same_ball and same_images(old, new):
            _take_over(old, new)
        else:
            others.append(old)
    if new["checked"]:
        of_model = [doubt for doubt in new["doubts"] if doubt["check"] not in AMONG_OUTCOMES]
        draws = any(doubt["check"] == "random" for doubt in of_model)
        new["doubts"] = [*of_model, *map(asdict, contradictions(new["outcomes"], draws=draws))]
    new["worst"] = worst_of(new)
    return [*others, new]


def _take_over(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Outcomes of other attacks, and doubts where they were not looked for again."""
    again = {outcome["attack"] for outcome in new["outcomes"]}
    earlier = [outcome for outcome in old["outcomes"] if outcome["attack"] not in again]
    new["outcomes"] = [*earlier, *new["outcomes"]]
    measured = {outcome["attack"] for outcome in new["outcomes"]}
    failed = dict.fromkeys([*old.get("failed", ()), *new["failed"]])
    new["failed"] = [name for name in failed if name not in measured]
    if not new["checked"]:
        new["checked"] = old.get("checked", True)
        new["doubts"] = old.get("doubts", [])
