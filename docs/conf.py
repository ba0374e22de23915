"""How Sphinx makes the site of these pages (`make docs`).

The reference is read from the uncompiled build: there signatures have their types.
"""

from __future__ import annotations

import re
from typing import Any

import peek

project = "peek"
author = "the peek authors"
copyright = "the peek authors, Apache-2.0"  # noqa: A001 - Sphinx reads it under this name
version = release = peek.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["**/.*"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]

default_role = "py:obj"
"""Docstrings write names in single backticks: a link where there is one, code in any case."""

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_use_rtype = False

copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"peek {version}"
html_static_path = ["_static"]
html_css_files = ["peek.css"]
html_copy_source = False
html_show_sphinx = False

typed = {
    "deploying": ("docker", "helm", "kubernetes", "litellm", "production-stack", "prometheus"),
    "lanes": ("fairness", "starvation"),
    "operations": ("metrics", "prometheus", "tenants"),
    "own_policy": ("custom policy", "plug-in"),
    "policies": ("agents", "sessions"),
    "sglang": ("lora", "priority"),
    "trace": ("anthropic", "openai"),
    "vllm": ("lora", "priority"),
}
"""Page -> words that people type who look for it: main entries of the index, which the search puts first."""

LISTED = re.compile(r" +\w[\w, ]*: \S")
"""A line of a docstring that says what one attribute is."""

SHARED = re.compile(r"^ +\w+(, \w+)+: (?=\S)")
"""The names on such a line that tells of several."""

SECTIONS = ("Args:", "Attributes:", "Raises:", "Returns:")


def prepare(*event: Any) -> None:
    """Make of a docstring (the last argument, lines), in place, what napoleon and docutils read as meant.

    A list of attributes may stand below a sentence of its own instead of a heading, several may share a line,
    and bars around a word are the paper's sign for the size of a set.
    """
    lines: list[str] = event[-1]
    lines[:] = [re.sub(r"\|(\w+)\|", r"\\|\1\\|", line) for line in lines]
    lines[:] = [SHARED.sub(lambda match: match[0].replace(", ", "/"), line) for line in lines]
    for place in reversed(range(len(lines))):
        above = next((line for line in reversed(lines[:place]) if line.strip()), "")
        if LISTED.match(lines[place]) and above.endswith(":") and above.strip() not in SECTIONS:
            lines[place:place] = ["", "Attributes:"]


def name_what_is_typed(_app: Any, page: str, source: list[str]) -> None:
    """Put the entries of the index above the title of a page, in place."""
    if page in typed:
        entries = ", ".join(f"! {word}" for word in typed[page])
        source[0] = f"```{{index}} {entries}\n```\n\n{source[0]}"


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_config_value("typed", {}, "env")  # another value: all pages are read anew
    app.connect("source-read", name_what_is_typed)
    app.connect("autodoc-process-docstring", prepare, priority=100)  # before napoleon
