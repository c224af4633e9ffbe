"""Gather the pages of the site: those of docs/, and those that follow from the code, which are one
for each method, the commands and the reference.

    python docs/pages.py

They go to build/pages, of which Sphinx makes the site.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType

import mrboost
from mrboost import attacks, recipes
from mrboost.recipes import Recipe

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = ROOT / "build" / "pages"
COMPARISON = (DOCS / "recipes.md").read_text("utf-8")
RESULTS = {page: page.read_text("utf-8") for page in sorted((DOCS / "results").glob("[!R]*.md"))}
HOMES = {mrboost, recipes, attacks}
MORE = ("adaptive", "samplers", "threat", "loggers")
PARTS = ("sampler", "objective", "scope", "init", "combine")
SYMBOLS = """\
g(x) are the logits of an image x, y is its label, K the number of classes, and δ runs over the ball
of radius eps. CE is the cross-entropy, MCE(g, y, y') = CE(g, y) + CE(−g, y') the margin
cross-entropy of a false label y', and MCE-A its mean over all K − 1 false labels."""


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(DOCS, PAGES, ignore=shutil.ignore_patterns("*.py", "*.toml", "__pycache__"))
    for name, text in pages():
        page = PAGES / f"{name}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(text.rstrip() + "\n", "utf-8")


def pages() -> Iterator[tuple[str, str]]:
    """Name and Markdown of each page that follows from the code."""
    yield "methods/index", methods_page()
    for recipe in recipes.RECIPES.values():
        yield f"methods/{recipe.name}", method_page(recipe)
    yield "reference/index", overview_page()
    for name, module in modules().items():
        yield f"reference/{name}", module_page(f"mrboost.{name}", module)
    yield "reference/commands", commands_page()
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text("utf-8").replace("](docs/", "](")
        text = re.sub(r"\]\([A-Z]+\.md", lambda link: link[0].lower(), text)
        yield name.removesuffix(".md").lower(), text


def methods_page() -> str:
    """All methods, those of one network and those of several."""
    several = {recipe.name for recipe in recipes.RECIPES.values() if recipe.rounds > 1}
    text = """\
# Methods

Each is a `Recipe`: `mrboost train NAME` trains it, or `mrboost.boost` in Python. Start with
[at-mce](at-mce.md). [Recipes](../recipes.md) compares them and has the options that add a part to
any of them; [a new method](../guides/method.md) is one more value."""
    for kind, names in (
        ("Single networks", recipes.RECIPES.keys() - several),
        ("Ensembles", several),
    ):
        own = [recipe for recipe in recipes.RECIPES.values() if recipe.name in names]
        lines = [(f"[{recipe.name}]({recipe.name}.md)", recipe.summary) for recipe in own]
        contents = "\n".join(recipe.name for recipe in own)
        text += f"\n\n## {kind}\n\n{table(('method', 'what it does'), lines)}"
        text += f"\n\n```{{toctree}}\n:hidden:\n\n{contents}\n```"
    return text


def method_page(recipe: Recipe) -> str:
    """What a method minimises, who published it, its parts, and what was measured."""
    formula = "\n".join(
        textwrap.fill(part, 80, subsequent_indent="    ", break_long_words=False)
        for part in recipe.formula.replace(",  ", ",\n").splitlines()
    )
    sections = {
        "What it minimises": f"```text\n{formula}\n```\n\n{SYMBOLS}",
        "Reference": capitalised(recipe.reference),
        "Train it": f"```\n"
        f"mrboost train {recipe.name} --data cifar10 --out runs/{recipe.name}\n"
        f"mrboost recipes --show {recipe.name}    # all settings\n```",
        "How it is composed": composition(recipe),
        "What was measured": measured(recipe),
    }
    body = [f"## {title}\n\n{text}" for title, text in sections.items()]
    return "\n\n".join([f"# {recipe.name}", capitalised(recipe.summary), *body])


def composition(recipe: Recipe) -> str:
    """The parts as in the table of docs/recipes.md, with the first sentence about each."""
    row = rows("recipe", "sampler")[f"`{recipe.name}`"]
    lines = []
    for part in PARTS:
        kind = re.split(r"\W", row[part])[0]
        home = "mrboost" if part == "combine" else "mrboost.recipes"
        about = sentence(getattr(sys.modules[home], kind))
        lines.append((part, f"[`{row[part]}`](#{home}.{kind})", about))
    lines += [
        ("rounds", row["rounds"], "Networks that are trained, unless `--rounds` says otherwise.")
    ]
    lines += [("model", f"`{row['model']}`", "`DATA` is the data's usual network, or `--model`.")]
    if row["besides"]:
        lines += [("besides", f"`{row['besides']}`", "What else differs from [at](at.md).")]
    return table(("part", "value", "what it does"), lines)


def measured(recipe: Recipe) -> str:
    """Its row of figures in docs/recipes.md, and the pages of results that name it."""
    text = ""
    row = rows("method", "AutoAttack").get(f"`{recipe.name}`", {})
    shown = {key: cell for key, cell in row.items() if cell and key != "method"}
    if shown:
        sources = re.search(r"^Figures in %.*?(?=\n\n)", COMPARISON, re.DOTALL | re.MULTILINE)
        assert sources is not None
        text = below(f"{sources[0]}\n\n{table(shown, [tuple(shown.values())])}\n\n")
    name = re.compile(rf"(?<![\w-]){recipe.name}(?![\w-])")
    naming = [page for page, content in RESULTS.items() if name.search(content)]
    if naming:
        text += "Pages of results that name it:\n\n"
        text += "\n".join(f"- [{title(RESULTS[page])}](../results/{page.name})" for page in naming)
    return text or "Nothing on [the pages of results](../results/README.md)."


def overview_page() -> str:
    """The names that ``mrboost`` itself has, and links to its modules."""
    homes = "\n".join(
        f"- [mrboost.{name}]({name}.md): {sentence(m)}" for name, m in modules().items()
    )
    own = [name for name in mrboost.__all__ if not inspect.ismodule(getattr(mrboost, name))]
    entries = "\n".join(directive(name) for name in own)
    contents = "\n".join(modules())
    return (
        f"# Python\n\n{homes}\n\n```{{toctree}}\n:hidden:\n\n{contents}\n```\n\n## mrboost\n\n"
        f"```{{eval-rst}}\n.. currentmodule:: mrboost\n\n{entries}\n```"
    )


def directive(name: str) -> str:
    kind = "class" if inspect.isclass(getattr(mrboost, name)) else "function"
    return f".. auto{kind}:: {name}"


def module_page(name: str, module: ModuleType) -> str:
    """What a module says of itself, and its public names but those that have a place elsewhere."""
    elsewhere = [
        one
        for one, value in vars(module).items()
        if isinstance(value, Recipe | MappingProxyType | dict)
        or any(one in home.__all__ and value is getattr(home, one) for home in HOMES - {module})
    ]
    exclude = f"   :exclude-members: {', '.join(elsewhere)}\n" if elsewhere else ""
    return f"# {name}\n\n```{{eval-rst}}\n.. automodule:: {module.__name__}\n{exclude}```"


def modules() -> dict[str, ModuleType]:
    """The public modules of the library."""
    named = {name: getattr(mrboost, name) for name in (*mrboost.__all__, *MORE)}
    return {name: value for name, value in named.items() if inspect.ismodule(value)}


def commands_page() -> str:
    """What ``--help`` prints, command by command."""
    overview = help_of()
    text = f"# Command line\n\n```text\n{overview}```"
    for command in re.findall(r"^    (\w+) ", overview, re.MULTILINE):
        text += f"\n\n## mrboost {command}\n\n```text\n{help_of(command)}```"
    return text


def help_of(*command: str) -> str:
    line = [sys.executable, "-m", "mrboost", *command, "--help"]
    environment = os.environ | {"COLUMNS": "90"}
    return subprocess.run(line, capture_output=True, text=True, check=True, env=environment).stdout


def rows(first: str, other: str) -> dict[str, dict[str, str]]:
    """The table of docs/recipes.md with these columns: each row by its first cell."""
    for found in re.findall(r"(?:^\|.*\n)+", COMPARISON, re.MULTILINE):
        head, _, *lines = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()
        ]
        if head[0] == first and other in head:
            return {line[0]: dict(zip(head, line, strict=True)) for line in lines}
    raise SystemExit(f"docs/recipes.md has no table with the columns {first} and {other}")


def table(head: Iterable[str], lines: Iterable[Sequence[str]]) -> str:
    head = list(head)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def below(text: str) -> str:
    """The links of docs/recipes.md, as they hold one folder below it."""
    return re.sub(r"\]\((?![a-z]+:)", "](../", text.replace("](#", "](recipes.md#"))


def title(page: str) -> str:
    return page.partition("\n")[0].removeprefix("# ")


def sentence(value: object) -> str:
    """The first sentence of a docstring, as Markdown."""
    first = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=\.) (?=[A-Z`])", first)[0].replace("``", "`")


def capitalised(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    main()
