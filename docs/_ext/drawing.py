"""Which package imports which, drawn from the code: `python -m docs._ext.drawing`."""

import ast
from collections.abc import Sequence
from itertools import islice, permutations, product
from pathlib import Path

import isoadapt

Point = tuple[float, float]
ROOT = Path(isoadapt.__file__).parent
PICTURE = Path(__file__).parents[1] / "_static" / "imports.svg"
WIDTH, HEIGHT, BOX_WIDTH, BOX_HEIGHT, MARGIN = 760, 78, 132, 34, 24
COLOURS = {"box": "#e8eef7", "edge": "#33507a", "text": "#1a2433", "arrow": "#8fa3bf"}


def imports_between_packages() -> dict[str, set[str]]:
    """Give, for each package or module below isoadapt, those it imports.

    `_utils` is left out, and so is `report`, which methods import to draw.
    """
    graph: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if package.startswith("_"):
            continue
        found = {name.split(".")[1] for name in _imported(path) if name.count(".")}
        drawn = {"report"} if package != "cli" else set()
        found = {name for name in found - drawn if not name.startswith("_") and name != package}
        graph.setdefault(package, set()).update(found)
    return {name: found & graph.keys() for name, found in graph.items()}


def _imported(path: Path) -> set[str]:
    """Give the modules of isoadapt that a file imports on loading or inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isoadapt"):
            names = {f"{node.module}.{each.name}" for each in node.names}
            found |= names if node.module == "isoadapt" else {node.module or ""}
    return found


def levels(graph: dict[str, set[str]]) -> list[list[str]]:
    """Give the packages in rows: each stands below all that it imports.

    Those that import nothing stand right above the first that imports them.
    """
    depth: dict[str, int] = {}

    def place(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max((place(other) for other in graph[name]), default=-1)
        return depth[name]

    for name in graph:
        place(name)
    for name in (name for name in graph if not graph[name]):
        users = [depth[other] for other in graph if name in graph[other]]
        depth[name] = min(users, default=1) - 1
    return [sorted(n for n in graph if depth[n] == row) for row in range(max(depth.values()) + 1)]


def arranged(rows: list[list[str]], arrows: dict[str, set[str]]) -> list[list[str]]:
    """Order each row so that as few arrows as possible run under a box, and all are short."""

    def cost(candidate: tuple[tuple[str, ...], ...]) -> tuple[int, float]:
        centres = _centres(candidate)
        ends = [
            (centres[name], centres[other]) for name in arrows for other in sorted(arrows[name])
        ]
        hidden = sum(_passes(*pair, centre) for pair in ends for centre in centres.values())
        return hidden, sum(abs(start[0] - end[0]) for start, end in ends)

    orders = islice(product(*map(permutations, rows)), 5000)
    return [list(row) for row in min(orders, key=cost)]


def _passes(start: Point, end: Point, box: Point) -> bool:
    """Whether an arrow runs under the box of a package between its ends."""
    height = (start[1] - box[1]) / (start[1] - end[1])
    if not 0.05 < height < 0.95:
        return False
    x = start[0] + (end[0] - start[0]) * height * height * (3 - 2 * height)
    return abs(x - box[0]) < BOX_WIDTH / 2 + 4


def _centres(rows: Sequence[Sequence[str]]) -> dict[str, Point]:
    return {
        name: (WIDTH / len(names) * (column + 0.5), MARGIN + HEIGHT * row + BOX_HEIGHT / 2)
        for row, names in enumerate(rows)
        for column, name in enumerate(names)
    }


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out each import that a chain of other imports implies."""

    def reached(name: str) -> set[str]:
        return graph[name].union(*(reached(other) for other in graph[name]))

    return {
        name: {each for each in found if not any(each in reached(o) for o in found - {each})}
        for name, found in graph.items()
    }


def svg() -> str:
    """Draw the packages, with an arrow from each to those that it imports."""
    graph = imports_between_packages()
    arrows = reduced(graph)
    rows = arranged(levels(graph), arrows)
    centres = _centres(rows)
    paths = [
        _arrow(centres[name], centres[other])
        for name in sorted(arrows)
        for other in sorted(arrows[name])
    ]
    boxes = [_box(name, *centre) for name, centre in centres.items()]
    height = 2 * MARGIN + HEIGHT * (len(rows) - 1) + BOX_HEIGHT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="14">'
    )
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="{COLOURS["arrow"]}"/>'
        "</marker></defs>"
    )
    ground = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([head, marker, ground, *paths, *boxes, "</svg>", ""])


def _arrow(start: Point, end: Point) -> str:
    (x1, y1), (x2, y2) = start, end
    y1, y2 = y1 - BOX_HEIGHT / 2, y2 + BOX_HEIGHT / 2
    bend = (y1 - y2) / 2
    return (
        f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 - bend:.0f} {x2:.0f} {y2 + bend:.0f} '
        f'{x2:.0f} {y2:.0f}" fill="none" stroke="{COLOURS["arrow"]}" stroke-width="1.5" '
        'marker-end="url(#tip)"/>'
    )


def _box(name: str, x: float, y: float) -> str:
    return (
        f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="6" fill="{COLOURS["box"]}" stroke="{COLOURS["edge"]}"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" fill="{COLOURS["text"]}">'
        f"{name}</text>"
    )


if __name__ == "__main__":
    PICTURE.write_text(svg(), "utf-8")
