"""The rooms of the library, read from its source: the table and the tree of docs/design.md.

    python docs/house.py            # print both
    python docs/house.py --write    # renew them in docs/design.md

The few words beside a file are the first sentence of its docstring. Code lines are lines that hold
code: no blanks, comments or docstrings.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import textwrap
import tokenize
from collections import defaultdict
from pathlib import Path

DOCS = Path(__file__).parent
DESIGN = DOCS / "design.md"
PACKAGE = DOCS.parent / "src" / "mrboost"
ROOMS = (
    "core",
    "plots",
    "data",
    "models",
    "speed",
    "attacks",
    "recipes",
    "game",
    "evaluation",
    "runs",
    "training",
    "report",
    "tabular",
    "studies",
    "cli",
)
"""From the ground up: a room imports only those before it. Core is the modules at the top."""
ENTRANCES = ("__init__", "__main__")
"""Modules at the top that may import any room."""
WIDTH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="renew docs/design.md")
    if parser.parse_args().write:
        DESIGN.write_text(renewed(DESIGN.read_text("utf-8")), "utf-8")
    else:
        print(table(), tree(), sep="\n\n")


def files() -> list[Path]:
    """The modules of the library, relative to the package."""
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def room_of(file: Path) -> str:
    return file.parts[0] if len(file.parts) > 1 else "core"


def renewed(page: str) -> str:
    """The page with the present table and tree between its markers."""
    for name, text in (("table", table()), ("tree", f"```\n{tree()}\n```")):
        block = f"<!-- house: {name} -->\n\n{text}\n\n<!-- end -->"
        pattern = rf"<!-- house: {name} -->.*?<!-- end -->"
        page, found = re.subn(pattern, block.replace("\\", r"\\"), page, flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"{DESIGN}: {found} places for the {name}, not one")
    return page


def table() -> str:
    """A Markdown table: what a room is for, its files and code lines, the rooms that it imports."""
    rows = ["| room | what it is for | files | code lines | imports |", "|---|---|---|---|---|"]
    lines = {file: code_lines((PACKAGE / file).read_text("utf-8")) for file in files()}
    imports = imported_rooms()
    for room in ROOMS:
        own = [file for file in lines if room_of(file) == room]
        purpose = summary(Path("__init__.py") if room == "core" else Path(room, "__init__.py"))
        if room == "core":
            purpose = "What every room needs."
        below = ", ".join(other for other in ROOMS if other in imports[room])
        total = sum(lines[file] for file in own)
        rows.append(f"| {room} | {purpose} | {len(own)} | {total:,} | {below} |")
    rows.append(f"| all | | {len(lines)} | {sum(lines.values()):,} | |")
    return "\n".join(rows)


def tree() -> str:
    """Every file with the first sentence of its docstring."""
    lines = ["src/mrboost/"]
    for room in ROOMS:
        if room != "core":
            lines.append(f"  {room}/")
        for file in files():
            if room_of(file) == room and (file.name != "__init__.py" or room == "core"):
                name = file if room == "core" else file.relative_to(room)
                indent = 2 if room == "core" else 4
                lines += entry(f"{' ' * indent}{name.as_posix()}", summary(file))
    return "\n".join(lines)


def entry(name: str, words: str) -> list[str]:
    """A line of the tree; more where the words need them."""
    column = 28
    wrapped = textwrap.wrap(words, WIDTH - column)
    return [
        f"{name if i == 0 else '':{column}}{part}".rstrip()
        for i, part in enumerate(wrapped or [""])
    ]


def summary(file: Path) -> str:
    """The first sentence of a module's docstring, without markup."""
    text = ast.get_docstring(ast.parse((PACKAGE / file).read_text("utf-8"))) or ""
    first = " ".join(text.partition("\n\n")[0].split())
    sentence = re.split(r"\. (?=[A-Z])", first)[0].rstrip(".:")
    return sentence.replace("``", "`")


def code_lines(source: str) -> int:
    """How many lines hold code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
            continue
        value = body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            docstrings.update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in silent:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def imported_rooms() -> dict[str, set[str]]:
    """The other rooms that each room imports, also inside functions."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in files():
        if file.stem in ENTRANCES and room_of(file) == "core":
            continue
        package = ["mrboost", *file.parts[:-1]]
        for node in ast.walk(ast.parse((PACKAGE / file).read_text("utf-8"))):
            for name in imported_names(node, package):
                parts = name.split(".")
                if parts[0] == "mrboost" and len(parts) > 1:
                    found[room_of(file)].add(parts[1] if parts[1] in ROOMS else "core")
    for room in found:
        found[room].discard(room)
    return found


def imported_names(node: ast.AST, package: list[str]) -> list[str]:
    """The full names of what an import statement in a module of ``package`` loads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = package[: len(package) - node.level + 1] if node.level else []
    prefix = ".".join([*base, *(node.module or "").split(".")]).strip(".")
    return [f"{prefix}.{alias.name}" for alias in node.names]


if __name__ == "__main__":
    main()
