"""Settings of Sphinx; `make docs` builds the site without a warning."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from isoadapt import __version__  # noqa: E402

project = "isoadapt"
author = "isoadapt developers"
copyright = author
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "myst_parser",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "docs._ext.site_pages",
]
exclude_patterns = ["_build", "_ext", "gallery/*.ipynb"]

# Every link to a name of isoadapt must lead somewhere; names of other packages are plain text.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!isoadapt).*")]
default_role = "code"

myst_enable_extensions = ["alert", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"
toc_object_entries_show_parents = "hide"
autodoc_member_order = "alphabetical"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"(?<!server)\.py$",  # which is shown, but would run for ever
    "reset_argv": "docs._ext.gallery.checkpoint_argument",
    "default_thumb_file": str(HERE / "_static" / "search.svg"),  # of examples that draw nothing
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,  # a page that needs a network
    "remove_config_comments": True,
    "min_reported_time": 0,
    "abort_on_example_error": True,
}

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "isoadapt"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/logo.svg"
html_sidebars = {"*": []}  # pages outside the folders have no neighbours to list
html_show_sourcelink = False
html_theme_options = {
    "logo": {
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
        "text": "isoadapt",
        "alt_text": "",
    },
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 5,
}

linkcheck_timeout = 20
