"""Pages from templates: HTML in one style that loads nothing, with figures and images inside the
page; and Markdown."""

from __future__ import annotations

import base64
import io
import re
from datetime import date
from pathlib import Path

import jinja2
from markupsafe import Markup, escape
from torch import Tensor

_TEMPLATES = Path(__file__).with_name("templates")


def render(template: Path, **values: object) -> str:
    """Fill a template. It may extend ``base.html`` and use ``macros.html`` of this package.

    In HTML text is escaped; a figure is embedded by ``{{ svg | embedded(alt) }}``, an image by
    ``{{ image | png }}``; ``{{ text | marked }}`` shows Markdown's `code` and **bold**. ``{{ today
    }}`` is the date.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _TEMPLATES]),
        autoescape=jinja2.select_autoescape(),
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"embedded": embedded, "marked": marked, "png": png}
    return environment.get_template(template.name).render(today=date.today(), **values)


def embedded(svg: str, alt: str) -> Markup:
    """A figure as an image that the page holds itself; ``alt`` says what it shows."""
    content = base64.b64encode(svg.encode()).decode()
    image = Markup("<img class=plot alt='{}' src='data:image/svg+xml;base64,{}'>")
    return image.format(alt, content)


def marked(text: str) -> Markup:
    """Markdown's `code` and **bold** as HTML."""
    with_code = re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*([^*]*)\*\*", r"<b>\1</b>", with_code))


def png(image: Tensor) -> str:
    """An image in [0, 1] as the source of an ``img``."""
    from PIL import Image

    values = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    picture = Image.fromarray(values if values.shape[2] == 3 else values[:, :, 0])
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
