"""Compare the figures of the pages with the records: `python -m tools.page_figures`.

It fails where a section of RESULTS.md, SPEED.md or REPRODUCTION.md is not what the records give, or
where a page says a figure that is in none of the sections that it takes its figures from. Figures
have two decimals or more. Code is not read, and the figures of `KNOWN` have no record.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import __main__ as speed
from benchmarks.quality import __main__ as quality

ROOT = Path(__file__).parents[1]
RESULTS, SPEED = (ROOT / "benchmarks" / f"{name}.md" for name in ("RESULTS", "SPEED"))
SOURCES = {  # page: the sections that it takes its figures from
    "README.md": ("dual_use", "bench"),
    "docs/index.md": ("dual_use",),
    "docs/start.md": ("embeddings_table",),
    "docs/guide/results.md": ("dual_use", "depth", "few_texts", "advice", "embeddings_table"),
    "docs/guide/finetuning.md": ("anchored",),
    "docs/guide/moving_vectors.md": ("moving_vectors",),
    "docs/guide/similarity.md": ("match_threshold", "dual_use"),
    "docs/guide/readout.md": ("dual_use", "few_texts", "depth"),
    "docs/guide/scope.md": ("uses",),
    "docs/guide/duplicates.md": ("uses",),
    "docs/guide/judging.md": ("embeddings_table",),
    "docs/guide/grid_search.md": ("grid_stability",),
}
KNOWN = {
    "docs/start.md": {"3.11"},  # Python
    "docs/guide/grid_search.md": {"0.014", "0.002", "0.90"},  # standard errors, and a floor
    "docs/guide/finetuning.md": {"0.227", "0.018", "0.029", "0.061"},  # one run; differences
    "docs/guide/judging.md": {"0.83", "0.33"},  # of the stored embeddings
    "docs/guide/moving_vectors.md": {"0.06"},  # a difference of the table
    "docs/guide/results.md": {"0.803"},  # of the earlier cases of "advice"
}
FIGURE = re.compile(r"(?<![\w.,])-?\d*\.\d{2,}(?![\w.])")
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL)


def sections() -> Iterator[tuple[Path, str, str]]:
    """Yield the file, the name and the text of each section that is made from records."""
    for name in quality.TABLES:
        yield RESULTS, name, quality.section(name)
    yield SPEED, "bench", speed.text(speed.records().entries())


def is_said(figure: str, numbers: set[str]) -> bool:
    """Whether a figure is one of the numbers, or the rounding of one."""
    places = len(figure.partition(".")[2])
    return any(f"{float(each):.{places}f}" == f"{float(figure):.{places}f}" for each in numbers)


def main() -> int:
    """Print what differs; return 1 if something does."""
    wrong, numbers = [], {}
    for path, name, text in sections():
        if f"<!-- {name}:begin -->\n{text}\n<!-- {name}:end -->" not in path.read_text("utf-8"):
            wrong.append(f"{path.name}: the section {name} is not what the records give")
        numbers[name] = {*re.findall(r"-?\d+\.\d+", text)}
    for page, sources in SOURCES.items():
        known = KNOWN.get(page, set()).union(*(numbers[name] for name in sources))
        said = FIGURE.findall(CODE.sub("", (ROOT / page).read_text("utf-8")))
        other = [figure for figure in said if not is_said(figure, known)]
        wrong += [f"{page}: {figure} is in none of {', '.join(sources)}" for figure in other]
    print("\n".join(wrong) or "the figures of the pages are those of the records")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
