"""``mrboost recipes`` and ``mrboost data``: what there is, and what one of them is."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

from mrboost import data, recipes
from mrboost.data.folder import FOLDER
from mrboost.errors import InputError
from mrboost.evaluation.result import format_eps
from mrboost.progress import folded
from mrboost.recipes import Recipe
from mrboost.recipes.config import describe_parts

_COLUMNS = ("sampler", "objective", "scope", "init", "combine", "rounds", "model")
_BESIDES = ("steps", "start", "schedule", "lr", "ema", "clip", "awp", "cutmix")
"""Shown in the last but one column of the table where they are not those of ``at``."""


def show_recipes(options: argparse.Namespace) -> None:
    chosen = [recipes.get(options.show)] if options.show else list(recipes.RECIPES.values())
    if options.json:
        described = [describe_parts(recipe) for recipe in chosen]
        print(json.dumps(described[0] if options.show else described, indent=2))
    elif options.markdown:
        print(_markdown_table(chosen))
    elif options.show:
        for key, text in _described(chosen[0]).items():
            print(folded(f"{key:<13} {text}", 14))
    else:
        for recipe in chosen:
            print(folded(f"{recipe.name:<22} {recipe.summary}", 23))


def _markdown_table(chosen: Sequence[Recipe]) -> str:
    """How recipes are composed: the table of docs/recipes.md."""
    head = ["recipe", *_COLUMNS, "besides", "reference"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    usual = _described(recipes.AT)
    for recipe in chosen:
        parts = _described(recipe)
        besides = [f"{key}: {parts[key]}" for key in _BESIDES if parts[key] != usual[key]]
        author = recipe.reference.split(",")[0]
        year = re.search(r"\d{4}$", recipe.reference)
        cells = [
            f"`{recipe.name}`",
            *(parts[key] for key in _COLUMNS),
            ", ".join(besides),
            f"{author} {year[0]}" if year else author,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _described(recipe: Recipe) -> dict[str, str]:
    """The parts of a recipe as text; ``{}`` in a model's name stands for the data's usual one."""
    parts = {key: _inline(value) for key, value in describe_parts(recipe).items() if key != "part"}
    return parts | {"model": parts["model"].replace("{}", "DATA")}


def show_data(options: argparse.Namespace) -> None:
    if options.download:
        if options.name is None:
            raise InputError("give the NAME of the dataset to --download (list: mrboost data)")
        data.load(options.name, options.data_dir, verify=options.verify)
    names = [options.name] if options.name else data.names()
    described = [data.describe(name, options.data_dir, verify=options.verify) for name in names]
    facts = described[0]
    if options.name and options.name.startswith(FOLDER) and facts["found"] is None:
        raise InputError(f"{options.name} does not exist: {facts['remedy']}")
    if options.json:
        print(json.dumps(facts if options.name else described, indent=2))
    elif options.name:
        for key, value in facts.items():
            print(folded(f"{key:<10} {_inline(value)}", 11))
    else:
        for facts in described:
            name = facts["name"]
            found = facts.get("found") or f"not here: mrboost data {name} --download"
            print(folded(f"{name:<10} {found}", 11))


def _inline(value: Any) -> str:
    """A described part on one line: ``Learner(loss=cross_entropy)``."""
    if isinstance(value, dict):
        inside = ", ".join(f"{key}={_inline(item)}" for key, item in value.items() if key != "part")
        return f"{value['part']}({inside})" if "part" in value else inside
    if isinstance(value, list | tuple):
        return ", ".join(_inline(item) for item in value)
    if isinstance(value, float) and "/" in format_eps(value):
        return f"{value:g} ({format_eps(value)})"
    return str(value)
