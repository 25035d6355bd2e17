"""A Sphinx extension: the pages of the API reference, and what plain Markdown cannot say."""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.nodes import Element
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from docs._ext import api, gallery

_ENTRY = re.compile(r"(\s*\w+(?: : |$))?(.*)")  # the name of a parameter or attribute, the rest
_EXAMPLE = re.compile(r"\]\([./]*/examples/(\w+)\.py\)")
_RECORD = re.compile(r"\[(benchmarks/[^]]+)\]\([^)]+\)")
_FITTED_NAME = re.compile(r"``.*?``|`.*?`|(?<![\w.])[a-z]\w*_(?!\w)")


def write(folder: Path) -> None:
    """Write the pages of the API reference; files that are up to date stay untouched."""
    pages = api.pages()
    folder.mkdir(exist_ok=True)
    for name, text in pages.items():
        path = folder / name
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
    for path in folder.glob("*.rst"):
        if path.name not in pages:
            path.unlink()


def _read_markdown(app: Sphinx, docname: str, source: list[str]) -> None:
    """Lead links to examples to the gallery, and let the lists of the guide order its pages."""
    source[0] = _EXAMPLE.sub(r"](/gallery/\1.rst)", source[0])
    source[0] = _RECORD.sub(r"`\1`", source[0])  # the site has no page of these files
    if docname == "guide/index":
        for section in source[0].split("\n## ")[1:]:
            pages = "\n".join(re.findall(r"^- \[.*?\]\((\w+)\.md\)", section, re.M))
            caption = section.splitlines()[0]
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def _link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Lead each exported name that a Markdown page quotes to its page."""
    if not str(app.env.doc2path(app.env.docname)).endswith(".md"):
        return
    paths = {each.name: each.path for each in api.exports()}
    for literal in [*doctree.findall(nodes.literal)]:
        path = paths.get(literal.astext())
        if path and not isinstance(literal.parent, nodes.reference):
            link = pending_xref(
                refdomain="py", reftype="obj", reftarget=path, refdoc=app.env.docname
            )
            literal.replace_self(link)
            link += literal


def _label_cells(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Repeat the heads of columns of text in the cells, which phones show below each other."""
    for table in doctree.findall(nodes.table):
        head = next(table.findall(nodes.thead), None)
        entries = [] if head is None else [*head.findall(nodes.entry)]
        if len(entries) < 3 or any("text-right" in entry["classes"] for entry in entries):
            continue
        table["classes"].append("stacked")
        for row in next(table.findall(nodes.tbody)).findall(nodes.row):
            for entry, cell in list(zip(entries, row, strict=True))[1:]:
                if cell.children and entry.astext():
                    cell[0].insert(0, nodes.inline(text=entry.astext(), classes=["cell-head"]))


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


def _write_formula(writer: Any, node: Element) -> None:
    """Write MathML, which browsers show without a script and so without a network."""
    writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx looks for its sources."""
    app.add_html_math_renderer("mathml", (_write_formula, None), (_write_formula, None))
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / "api"))
    app.connect("builder-inited", gallery.write_thumbnails, priority=900)  # those of the gallery
    app.connect("source-read", _read_markdown)
    app.connect("doctree-read", _link_names)
    app.connect("doctree-resolved", _label_cells)
    app.connect("missing-reference", _resolve_alias)
    app.connect("autodoc-process-docstring", _quote_fitted_names, priority=100)
    return {"parallel_read_safe": True}
