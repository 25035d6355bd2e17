"""Tables of benchmarks/RESULTS.md as data, so that pages and pictures show stored figures."""

from pathlib import Path

RESULTS = Path(__file__).parents[2] / "benchmarks" / "RESULTS.md"
TASKS = {
    "CoLA dev": "cola dev",
    "MRPC test": "mrpc test",
    "RTE dev": "rte dev",
    "SST-2 test": "sst2_sentence test",
}


def adapter_rows(task: str) -> dict[str, dict[str, str]]:
    """Give the rows of a task's table of adapters: by name, the text of each column."""
    text = RESULTS.read_text("utf-8").split("<!-- embeddings:begin -->")[1]
    lines = text.split("<!-- embeddings:end -->")[0].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {TASKS[task]}, n="))
    columns = _cells(lines[start])[1:]
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, *values = _cells(line)
        rows[name] = dict(zip(columns, values, strict=True))
    return rows


def number(text: str) -> float:
    """Read the mean of a cell such as "0.742 ± 0.002"."""
    return float(text.split("±")[0])


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
