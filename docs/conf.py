"""The documentation site: ``make docs`` builds it with Sphinx, and fails on any warning."""

import inspect

from sphinx.application import Sphinx

import mrboost

project = "mrboost"
release = mrboost.__version__
copyright = "the mrboost authors"
extensions = [
    "myst_parser",  # pages in Markdown
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # Args: and Returns:
    "sphinx_copybutton",
]

myst_heading_anchors = 4  # headings are called as on GitHub
default_role = "code"
highlight_language = "none"  # of blocks that name none: commands, tables
python_maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
napoleon_use_param = False  # "x, y: ..." names two

html_theme = "furo"
html_title = f"mrboost {release}"
html_copy_source = False


def setup(app: Sphinx) -> None:
    app.connect("source-read", list_results)
    app.connect("autodoc-skip-member", skip_borrowed)


def list_results(_: Sphinx, page: str, source: list[str]) -> None:
    """Put all pages of results below their overview in the navigation."""
    if page == "results/README":
        source[0] += "\n```{toctree}\n:glob:\n:hidden:\n\n[a-z]*\n*/*\n```\n"


def skip_borrowed(_: Sphinx, what: str, _name: str, value: object, *__: object) -> bool | None:
    """Leave out functions that are defaults of fields, and methods that scikit-learn adds."""
    if what != "class" or not inspect.isroutine(value):
        return None
    own = "." in value.__qualname__ and "<locals>" not in value.__qualname__
    return None if own else True
