"""Plot of spectra and of the explained variance."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike

from isoadapt.geometry._spread import spectrum
from isoadapt.report._display import COLOURS, DASHES, Display, ink, legend_beside, literal, points

_LOWEST = 1e-8  # share of variance below which a spectrum is cut off


class SpectrumDisplay(Display):
    """Plot of the spectra of embeddings and of their cumulative explained variance.

    Create it with :meth:`from_embeddings` or :meth:`from_estimator`, which also draw it. The first
    set is a broad line in the colour of the text. A dotted line shows equal shares of variance,
    those of isotropic embeddings, if all sets have the same number of directions.

    Parameters
    ----------
    embeddings : array-like of shape (n_samples, n_features), or mapping of str to array-like
        Embeddings, or several sets of embeddings by their labels, the baseline first.

    Attributes
    ----------
    figure_ : matplotlib Figure
        The figure.
    axes_ : ndarray of matplotlib Axes, shape (2,)
        Panel of the spectra and panel of the cumulative explained variance.
    lines_ : dict of str to tuple of two matplotlib Line2D
        The two curves of each label.

    Raises
    ------
    ValueError
        If embeddings are not finite matrices with at least two different rows.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import Whitening
    >>> from isoadapt.report import SpectrumDisplay
    >>> X = np.random.default_rng(0).normal(size=(300, 4)) * [8, 4, 2, 1]
    >>> display = SpectrumDisplay.from_estimator(Whitening().fit(X), X)  # doctest: +SKIP
    >>> display.figure_.savefig("spectra.png")  # doctest: +SKIP
    """

    _panels = ("spectrum", "cumulative explained variance")
    _size = (10, 4.2)

    def __init__(self, embeddings: ArrayLike | Mapping[str, ArrayLike]) -> None:
        sets = embeddings if isinstance(embeddings, Mapping) else {"embeddings": embeddings}
        self.shares = {}
        for label, X in sets.items():
            variances = spectrum(torch.from_numpy(points(X, f"embeddings[{label!r}]"))).numpy()
            self.shares[label] = variances / variances.sum()

    @classmethod
    def from_embeddings(
        cls, embeddings: ArrayLike | Mapping[str, ArrayLike], *, ax: Any = None
    ) -> Self:
        """Plot embeddings, with the parameter of the class, and `ax` as for :meth:`plot`."""
        return cls(embeddings).plot(ax=ax)

    @classmethod
    def from_estimator(cls, estimator: Any, X: ArrayLike, *, ax: Any = None) -> Self:
        """Plot the spectra of embeddings X before, as "no adapter", and after fitted adapters.

        `estimator` is an adapter, labelled with its class, or several by their labels. X are best
        rows that it was not fitted to: the spectrum of others is flatter. `ax` is as for
        :meth:`plot`.
        """
        if not isinstance(estimator, Mapping):
            estimator = {type(estimator).__name__: estimator}
        adapted = {label: each.transform(X) for label, each in estimator.items()}
        return cls.from_embeddings({"no adapter": X, **adapted}, ax=ax)

    def _draw(self) -> None:
        spectra, cumulative = self.axes_
        looks: list[dict[str, Any]] = [{"color": ink(spectra), "linewidth": 3.2, "zorder": 3}]
        for colour, dashes in zip(COLOURS, cycle(DASHES), strict=False):
            looks += [{"color": colour, "ls": dashes, "linewidth": 2.0, "zorder": 4}]
        entries, self.lines_ = {}, {}
        for (label, shares), look in zip(self.shares.items(), cycle(looks), strict=False):
            self.lines_[label] = self._curves(shares, look)
            entries[literal(label)] = self.lines_[label][0]
        sizes = {len(shares) for shares in self.shares.values()}
        if len(sizes) == 1:
            size, look = sizes.pop(), {"color": ink(spectra, 0.7), "ls": ":", "linewidth": 1.2}
            entries["equal shares: isotropic"] = self._curves(np.full(size, 1 / size), look)[0]
        legend_beside(cumulative, entries)
        lowest = min(shares[shares > _LOWEST].min() for shares in self.shares.values())
        spectra.set(yscale="log", ylim=(lowest / 2, 1.5), ylabel="share of variance")
        cumulative.set(ylim=(0, 1.02), ylabel="cumulative explained variance")
        for axes in self.axes_:
            axes.set(xscale="log", xlabel="principal direction")

    def _curves(self, shares: np.ndarray, look: dict[str, Any]) -> tuple[Any, Any]:
        """Draw shares of variance and their sums."""
        spectra, cumulative = self.axes_
        x = np.arange(1, len(shares) + 1)
        [first] = spectra.plot(x, shares, **look)
        [second] = cumulative.plot(x, shares.cumsum(), **look)
        return first, second
