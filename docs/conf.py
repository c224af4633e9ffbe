"""The documentation site: ``make docs`` builds it with Sphinx and fails on any warning."""


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
autodoc_default_options = {"members": True, "exclude-members": "set_fit_request, set_score_request"}
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
python_maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"mrboost {release}"
html_show_sphinx = False
html_copy_source = False


def setup(app: Sphinx) -> None:
    app.connect("source-read", list_results)


def list_results(_: Sphinx, page: str, source: list[str]) -> None:
    """Put all pages of results below their overview in the navigation."""
    if page == "results/README":
        source[0] += "\n```{toctree}\n:glob:\n:hidden:\n\n[a-z]*\n*/*\n```\n"
