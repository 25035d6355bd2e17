"""Where the benchmarks lie and where they put what is not committed."""

from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
RESULTS = FOLDER / "results"
