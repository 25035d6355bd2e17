"""Small blocks, so that a few rows or texts test what the library does block by block."""

from contextlib import contextmanager

import numpy as np
import pytest

PLACES = {  # constants below isoadapt that limit what is held at once, by what is read so
    "chunks": ["geometry._chunks._ENTRIES"],
    "moments": ["geometry._moments._BLOCK", "geometry._moments._PIVOT_ROWS"],
    "groups": ["geometry._groups._ROWS"],
    "partition": ["geometry._spread._CHUNK"],
    "neighbours": ["geometry._neighbours._SCORES"],
    "dimension": ["geometry._neighbours._ENTRIES"],
    "tree": ["geometry._persistence._MATRIX_BYTES"],
    "hashes": ["_utils.copies._HASHED"],
    "novelty": ["novelty._COSINES"],
    "pairs": ["metrics._match_threshold._ROWS"],
    "duplicates": ["metrics._duplicates._SIDE"],
    "sample": ["metrics._isotropy_report._SAMPLED"],
    "layers": ["encoders._layer_report._BLOCK"],
    "texts": ["encoders._tokenization._BLOCK"],
    "calls": ["encoders._tokenization._PART"],
    "batches": ["encoders._batching._HELD"],
    "readout": ["adapters._teacher_readout._ENTRIES"],
    "ridge": ["adapters._ridge_path._BLOCK"],
}


@contextmanager
def small_blocks(**sizes):
    """Set sizes by their names in PLACES, in a ``with`` block or, as a decorator, in a test."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            for place in PLACES[name]:
                patch.setattr(f"isoadapt.{place}", size)
        yield


def as_memmap(rows, folder, name="X"):
    """A memory map of rows, which the library reads block by block."""
    np.save(folder / f"{name}.npy", rows)
    return np.load(folder / f"{name}.npy", mmap_mode="r")
