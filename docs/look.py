"""Look at the reports in a real browser: at three widths, light and dark, and printed.

    python docs/look.py

Screenshots and PDFs of the reports of the runs in demo/, or of tiny ones that are trained here, go
to look/. Ends with status 1 where a page is wider than its window, or the worst case is not on the
first screen. Without a browser it says so, and looks at nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import mrboost
from mrboost.report import write_report
from mrboost.runs import Run
from mrboost.runs.evaluate_run import evaluate_run

LOOK = Path("look")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "microsoft-edge")
_SWITCHES = (
    "headless no-sandbox disable-gpu disable-quic no-first-run hide-scrollbars disable-sync",
    "disable-background-networking disable-component-update allow-file-access-from-files",
)
HEADLESS = [f"--{name}" for line in _SWITCHES for name in line.split()]
WIDTHS = (1280, 768, 390)
SCHEMES = {"dark": 0, "light": 1}  # as the browser counts them
FIRST_SCREEN = 900
HEIGHT = 2600
# A browser has no window of 390 pixels, but a frame may be as narrow as one likes
FRAME = """<!doctype html><title></title><body style='margin:0'>
<iframe id=page src='{page}' style='width:{width}px;height:{height}px;border:0'></iframe>
<script>onload = () => {{
  const inside = page.contentDocument, worst = inside.querySelector('.worst b')
  const place = worst.getBoundingClientRect()
  document.title = [inside.documentElement.scrollWidth, place.right, place.bottom].map(Math.ceil)
}}</script>"""


def main() -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"no browser found ({', '.join(BROWSERS)}): the reports were not looked at")
        return
    LOOK.mkdir(exist_ok=True)
    mistakes = []
    for page in pages():
        run(browser, f"--print-to-pdf={LOOK / page.stem}.pdf", "--no-pdf-header-footer", page)
        for width, scheme in product(WIDTHS, SCHEMES):
            picture = LOOK / f"{page.stem}-{width}-{scheme}.png"
            wide, right, bottom = shoot(browser, page, width, scheme, picture)
            if wide > width:
                mistakes.append(f"{picture}: the page is {wide} pixels wide")
            if right > width or bottom > FIRST_SCREEN:
                mistakes.append(f"{picture}: the worst case ends at {right}, {bottom}")
    print(*mistakes, f"screenshots and PDFs: {LOOK}/", sep="\n")
    sys.exit(bool(mistakes))


def pages() -> Iterator[Path]:
    """A report of one run, one of several, and the page of an evaluation."""
    runs = sorted(path.parent for path in Path("demo").glob("*/config.json")) or trained()
    for folder in runs:
        if not Run.open(folder).results.get("evaluations"):
            evaluate_run(folder, ["fgsm", "pgd-20", "cw"])
    yield write_report(runs[:1], LOOK / "one.html")
    yield write_report(runs, LOOK / "several.html")
    test = mrboost.data.load("digits").test
    found = mrboost.evaluate(mrboost.load(runs[0]), test, attack=["fgsm", "pgd-20"], eps=0.1)
    yield write_report({"a network": found}, LOOK / "evaluation.html")


def trained() -> list[Path]:
    """Two networks, these joined, and a boosted ensemble, each of a few seconds."""
    for seed in (0, 1):
        make(f"seed{seed}", "at-mce", seed=seed)
    make("boosted", "mrboost", rounds=2)
    both = [LOOK / "seed0", LOOK / "seed1"]
    if not (LOOK / "joined").exists():
        mrboost.join(both, LOOK / "joined")
    return [*both, LOOK / "boosted", LOOK / "joined"]


def make(name: str, recipe: str, **options: int) -> None:
    mrboost.boost(recipe, "digits", epochs=3, out=LOOK / name, resume=True, device="cpu", **options)


def shoot(browser: str, page: Path, width: int, scheme: str, picture: Path) -> list[int]:
    """Take a screenshot; gives how wide the page is, and where the worst case ends."""
    frame = LOOK / "frame.html"
    frame.write_text(FRAME.format(page=page.name, width=width, height=HEIGHT), "utf-8")
    document = run(
        browser,
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        f"--window-size={width},{HEIGHT}",
        f"--screenshot={picture}",
        "--dump-dom",
        frame,
    )
    frame.unlink()
    return [int(number) for number in re.findall(r"\d+", document.partition("</title>")[0])]


def run(browser: str, *options: str | Path) -> str:
    *settings, page = options
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *HEADLESS, f"--user-data-dir={profile}", *map(str, settings)]
        ended = subprocess.run(
            [*command, Path(page).absolute().as_uri()], capture_output=True, text=True, timeout=120
        )
    return ended.stdout


if __name__ == "__main__":
    main()
