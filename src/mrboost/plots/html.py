"""HTML that loads nothing: the one style, and images inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from html import escape

from torch import Tensor


def embedded(svg: str) -> str:
    """A figure as an image that the page holds itself."""
    return (
        "<img class=plot alt='plot' "
        f"src='data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}'>"
    )


def png(image: Tensor) -> str:
    """An image in [0, 1] as what an ``img`` shows."""
    from PIL import Image

    values = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    picture = Image.fromarray(values if values.shape[2] == 3 else values[:, :, 0])
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    """A table of cells that are HTML already."""
    lines = ["".join(f"<th>{cell}</th>" for cell in head)]
    lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return f"<table{kind}>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


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
.scroll{overflow-x:auto} .scroll td{white-space:nowrap} .scroll td:first-child{white-space:normal;min-width:16ch}
.gallery td,.gallery th{padding:.3rem .35rem;border:0;text-align:center}
.gallery th{text-align:left;white-space:nowrap} figure{margin:0}
.pixels{width:72px;height:72px;image-rendering:pixelated;display:block;margin:auto}
figcaption{font-size:.72rem;max-width:84px;margin:auto} .right{color:#047857} .wrong{color:#b91c1c;font-weight:600}
code{background:#eef2f7;padding:.1rem .3rem;border-radius:3px}
"""  # noqa: E501


def html_page(body: str, title: str = "mrboost report") -> str:
    """A page that loads nothing, in the one style."""
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<style>{_STYLE}</style></head><body><main>\n{body}\n</main></body></html>\n"
    )
