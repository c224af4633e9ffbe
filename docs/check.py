"""Check the pages: links and anchors, examples and figures that they name, the table of recipes.

    python docs/check.py

Prints one line for each mistake, and ends with status 1 if there is any.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def main() -> None:
    mistakes = [*broken_links(), *missing_examples(), *wrong_minutes(), *old_table_of_recipes()]
    print(*mistakes, sep="\n" if mistakes else "")
    sys.exit(bool(mistakes))


def broken_links() -> Iterator[str]:
    """Links to files or headings that are not there."""
    for page in PAGES:
        text = without_code(page.read_text("utf-8"))
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue  # elsewhere
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            where = page.relative_to(ROOT)
            if not file.exists():
                yield f"{where}: {target} does not exist"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                yield f"{where}: {target} names no heading"


def anchors(page: Path) -> set[str]:
    """What links to the headings of a page are called, as GitHub calls them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text("utf-8")), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


def missing_examples() -> Iterator[str]:
    """Scripts that a page names and that are not there."""
    for page in PAGES:
        for script in re.findall(r"(?:examples|benchmarks)/\w+\.py", page.read_text("utf-8")):
            if not (ROOT / script).exists():
                yield f"{page.relative_to(ROOT)}: {script} does not exist"


def wrong_minutes() -> Iterator[str]:
    """Points of the plot of minutes whose figures are not on the page that they come from."""
    results = DOCS / "results"
    for line in tomllib.loads((results / "minutes.toml").read_text("utf-8"))["lines"]:
        page = (results / line["page"]).read_text("utf-8")
        for point in line["points"]:
            clean, pgd = f"{point['clean']:.2f}", f"{point['pgd']:.2f}"
            if not re.search(rf"\b{clean}\b[* |]+{pgd}\b", page):
                yield f"docs/results/minutes.toml: {line['page']} has no {clean} / {pgd}"


def old_table_of_recipes() -> Iterator[str]:
    """The table of docs/recipes.md, if it is not the one that the command prints."""
    command = [sys.executable, "-m", "mrboost", "recipes", "--markdown"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if table not in (DOCS / "recipes.md").read_text("utf-8"):
        yield "docs/recipes.md: the table is not that of: mrboost recipes --markdown"


if __name__ == "__main__":
    main()
