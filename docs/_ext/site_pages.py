"""A Sphinx extension that writes the pages, tables and the drawing that come from the code."""

import re
from pathlib import Path
from typing import Any

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from docs._ext import adapter_tables, api, drawing

_ENTRY = re.compile(r"(\s*\w+(?: : |$))?(.*)")  # the name of a parameter or attribute, the rest
_FITTED_NAME = re.compile(r"``.*?``|`.*?`|(?<![\w.])[a-z]\w*_(?!\w)")


def write(folder: Path) -> None:
    """Write all generated files below a folder; files that are up to date stay untouched."""
    files = {f"api/{name}": text for name, text in api.pages().items()}
    files |= {f"generated/{name}": text for name, text in adapter_tables.tables().items()}
    files["generated/imports.svg"] = drawing.svg(drawing.imports_between_packages())
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
    for path in (folder / "api").glob("*.rst"):
        if f"api/{path.name}" not in files:
            path.unlink()


def _resolve_alias(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Element
) -> Element | None:
    """Lead isoadapt.adapters.Whitening to isoadapt.Whitening, where it is documented."""
    path = api.aliases().get(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or path is None or path == node["reftarget"]:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], path, node, content
    )


def _quote_fitted_names(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Quote names such as n_features_in_ in docstrings; unquoted they are links to reST."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            start, rest = _ENTRY.fullmatch(line).groups()
            lines[i] = (start or "") + _FITTED_NAME.sub(_quoted, rest)


def _quoted(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("`") else f"`{found[0]}`"


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx looks for its sources."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir)))
    app.connect("missing-reference", _resolve_alias)
    app.connect("autodoc-process-docstring", _quote_fitted_names, priority=100)
    return {"parallel_read_safe": True}
