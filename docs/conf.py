"""The documentation site: `make docs` builds it into build/site.

The source folder is the repository, so that pages link to each other as they do in a clone: `sphinx-build -c docs .`
Nothing is fetched during a build, unless REFOCAL_DOCS_ONLINE=1 asks for links into other packages' documentation.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent / "src"), str(HERE.parent / "lab" / "src")]

import refocal  # noqa: E402

project = "refocal"
author = "The refocal developers"
project_copyright = f"2026, {author}"
version = release = refocal.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "command_line",
    "docstring_blocks",
    "repository_links",
]

root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "docs/examples/*.rst",
    "docs/reference/api/*.rst",
    "benchmarks/results/*.md",
    "lab/README.md",
    "lab/docs/*.md",
    "lab/zoo/README.md",
    "lab/benchmarks/results/*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
templates_path = [str(HERE / "templates")]  # absolute: autosummary looks below the source folder, the builder here
smartquotes = False  # quotes belong to values, such as "logits"
default_role = "code"  # docstrings write `name`, as Markdown does

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the arguments are described with their shapes
autodoc_preserve_defaults = True
autosummary_generate = True
autosummary_imported_members = True
autosummary_ignore_module_all = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "scipy": ("https://docs.scipy.org/doc/scipy", None),
    "sklearn": ("https://scikit-learn.org/stable", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
}
if os.environ.get("REFOCAL_DOCS_ONLINE") != "1":
    intersphinx_mapping = {}

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "docs/examples",
    "filename_pattern": "/plot_",
    "ignore_pattern": r"^(?!plot_)",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 600,  # seconds: the time that an example took here tells nobody anything
    "image_srcset": ["2x"],
    "remove_config_comments": True,
    "abort_on_example_error": True,
}

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"refocal {release}"
html_static_path = ["static"]
html_favicon = "static/favicon.svg"
html_css_files = ["refocal.css"]
html_additional_pages = {"index": "redirect.html"}  # the site opens at its root, too
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
