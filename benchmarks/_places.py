"""Where the benchmarks lie and where they put what they measure."""

from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
RECORDS_FOLDER = FOLDER / "quality" / "results"
