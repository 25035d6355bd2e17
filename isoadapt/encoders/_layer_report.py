"""LayerReport: geometry of each layer of a transformer, as a table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

from isoadapt._utils.optional import import_optional
from isoadapt._utils.tables import aligned_table

_COLUMNS = {
    "layer": ("layer", "d"),
    "isoscore": ("IsoScore", ".4g"),
    "isoscore_corrected": ("corrected", ".4g"),
    "ev1": ("EV1", ".4g"),
    "ev2": ("EV2", ".4g"),
    "ev3": ("EV3", ".4g"),
    "anisotropy1": ("anisotropy_1", ".4g"),
    "mean_cosine": ("mean cosine", ".4g"),
    "two_nn": ("TwoNN", ".4g"),
}


@dataclass(frozen=True)
class LayerFigures:
    """Geometry of the token embeddings of one layer; NaN if a figure is not defined."""

    layer: int  # index of the hidden state; 0 is the input of the first layer
    n_tokens: int
    isoscore: float
    isoscore_corrected: float  # bias corrected
    ev1: float  # fraction of the variance along the first principal direction
    ev2: float  # along the first two
    ev3: float  # along the first three
    anisotropy1: float  # fraction of the first squared singular value, without centring
    mean_cosine: float  # over all pairs of different tokens
    two_nn: float  # TwoNN intrinsic dimension of a sample of the tokens


class LayerReport(Sequence[LayerFigures]):
    """Geometry of the token embeddings of every layer of a transformer.

    A report is a sequence with one entry for each hidden state. Printing it shows a table.

    Parameters
    ----------
    layers : sequence of LayerFigures
        One entry for each hidden state, from the embedding layer, 0, to the last layer. An entry
        has the attributes ``layer``, ``n_tokens``, ``isoscore``, ``isoscore_corrected`` (bias
        corrected), ``ev1``, ``ev2`` and ``ev3`` (fraction of the variance along the first one, two
        and three principal directions), ``anisotropy1`` (fraction of the first squared singular
        value, without centring; with centring it is ``ev1``), ``mean_cosine`` (over all pairs of
        different tokens) and ``two_nn`` (TwoNN intrinsic dimension of a sample of the tokens). A
        figure that is not defined is NaN.
    n_texts : int
        Number of texts read.
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
            ``n_texts``, ``n_features`` and ``layers``, which is a list with one dict for each
            layer.
        """
        layers = [asdict(figures) for figures in self]
        return {"n_texts": self.n_texts, "n_features": self.n_features, "layers": layers}

    def to_frame(self) -> Any:
        """Return the report as a table.

        Returns
        -------
        pandas.DataFrame
            Table with one row for each layer and the number of the layer as index.

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
        title = (
            f"LayerReport: {self[0].n_tokens} tokens × {self.n_features} from {self.n_texts} "
            "texts, token states without pooling (IsoScore: 1 = isotropic)"
        )
        return f"{title}\n{aligned_table(cells, left=())}"

    __repr__ = __str__
