"""What is known of each layer of a transformer, as a table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

from isoadapt._utils.optional import import_optional

_COLUMNS = {
    "layer": ("layer", "d"),
    "isoscore": ("IsoScore", ".4f"),
    "isoscore_corrected": ("corrected", ".4f"),
    "ev1": ("EV1", ".4f"),
    "ev2": ("EV2", ".4f"),
    "ev3": ("EV3", ".4f"),
    "anisotropy1": ("anisotropy_1", ".4f"),
    "anisotropy1_centered": ("centred", ".4f"),
    "mean_cosine": ("mean cosine", ".4f"),
    "two_nn": ("TwoNN", ".2f"),
}


@dataclass(frozen=True)
class LayerFigures:
    """Geometry of the token embeddings of one layer; NaN where a figure is not defined.

    Attributes
    ----------
    layer : int
        Number of the hidden state: 0 is what enters the first layer.
    n_tokens : int
        Tokens read.
    isoscore, isoscore_corrected : float
        Plain and bias-corrected IsoScore.
    ev1, ev2, ev3 : float
        Share of variance along the first one, two and three principal directions.
    anisotropy1, anisotropy1_centered : float
        Share of the first squared singular value, raw and centred.
    mean_cosine : float
        Mean cosine of all pairs of different tokens.
    two_nn : float
        TwoNN intrinsic dimension of a sample of the tokens.
    """

    layer: int
    n_tokens: int
    isoscore: float
    isoscore_corrected: float
    ev1: float
    ev2: float
    ev3: float
    anisotropy1: float
    anisotropy1_centered: float
    mean_cosine: float
    two_nn: float


class LayerReport(Sequence[LayerFigures]):
    """Geometry of every layer: a sequence with one entry for each hidden state.

    Parameters
    ----------
    layers : sequence of LayerFigures
        From the embedding layer, 0, to the last.
    n_texts : int
        Texts read.
    n_features : int
        Width of the hidden states.
    """

    def __init__(self, layers: Sequence[LayerFigures], n_texts: int, n_features: int) -> None:
        self.layers = tuple(layers)
        self.n_texts = n_texts
        self.n_features = n_features

    @overload
    def __getitem__(self, index: int) -> LayerFigures: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[LayerFigures, ...]: ...

    def __getitem__(self, index: int | slice) -> LayerFigures | tuple[LayerFigures, ...]:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain numbers.

        Returns
        -------
        dict
            ``n_texts``, ``n_features`` and ``layers``, a list with one dict for each layer.
        """
        layers = [asdict(figures) for figures in self]
        return {"n_texts": self.n_texts, "n_features": self.n_features, "layers": layers}

    def to_frame(self) -> Any:
        """Return the report as a table.

        Returns
        -------
        pandas.DataFrame
            One row for each layer, which is the index.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        pandas = import_optional("pandas", feature="LayerReport.to_frame", extra="data")
        return pandas.DataFrame([asdict(figures) for figures in self]).set_index("layer")

    def __str__(self) -> str:
        cells = [[title for title, _ in _COLUMNS.values()]]
        cells += [
            [format(getattr(figures, name), form) for name, (_, form) in _COLUMNS.items()]
            for figures in self
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in cells]
        title = (
            f"LayerReport: {self[0].n_tokens} tokens × {self.n_features} from {self.n_texts} "
            "texts (IsoScore: 1 = isotropic)"
        )
        return "\n".join([title, *lines])

    __repr__ = __str__
