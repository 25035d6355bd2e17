"""Draw the picture of the README from stored figures: `python docs/picture.py`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from docs._ext import results  # noqa: E402

PICTURE = HERE / "_static" / "repaired.svg"
SERIES = {
    "no adapter": ("no adapter", "#9aa5b1"),
    "IsotropyLayer, minibatch": ("IsotropyLayer", "#4c78a8"),
    "LogitPreservingWhitening": ("LogitPreservingWhitening", "#2a9d6f"),
    "AllButTheTop, head refit": ("AllButTheTop", "#d98032"),
}
PANELS = {"corrected": "IsoScore, bias-corrected", "accuracy": "accuracy on unseen texts"}
WIDTH, HEIGHT, PANEL, TOP, BOTTOM = 760, 250, 340, 66, 214
BAR, GROUP = 15, 76


def picture() -> str:
    """Give the SVG: a panel of IsoScores and one of accuracies, four bars for each model."""
    rows = {task: results.adapter_rows(task) for task in results.TASKS}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_legend(),
    ]
    for i, (column, title) in enumerate(PANELS.items()):
        parts += _panel(36 + i * (PANEL + 34), column, title, rows)
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    parts, x = [], 36
    for label, colour in SERIES.values():
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="22">{label}</text>')
        x += 52 + 7 * len(label)
    return parts


def _panel(
    left: int, column: str, title: str, rows: dict[str, dict[str, dict[str, str]]]
) -> list[str]:
    parts = [f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{title}</text>']
    for tick in (0, 0.25, 0.5, 0.75, 1):
        y = _height(tick)
        parts.append(f'<path d="M{left} {y:.1f}h{PANEL - 22}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for g, (task, table) in enumerate(rows.items()):
        x = left + 9 + GROUP * g
        for b, (name, (_, colour)) in enumerate(SERIES.items()):
            value = results.number(table[name][column])
            y = _height(value)
            parts.append(
                f'<rect x="{x + BAR * b}" y="{y:.1f}" width="{BAR - 2}" '
                f'height="{max(BOTTOM - y, 1):.1f}" fill="{colour}"/>'
            )
        middle = x + BAR * len(SERIES) / 2
        parts.append(f'<text x="{middle}" y="{BOTTOM + 18}" text-anchor="middle">{task}</text>')
    return parts


def _height(value: float) -> float:
    return BOTTOM - value * (BOTTOM - TOP)


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
