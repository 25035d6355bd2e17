"""Sums over groups of dependent rows, from which the bias-corrected IsoScore is computed.

As in `unbiased_squares`, tr(Σ)² and ‖Σ‖² are estimated by the means of ‖a - b‖²‖c - e‖²/4 and of
((a - b)ᵀ(c - e))²/4, here over all quadruples of rows of four different groups. With S_g = Σ xxᵀ
and s_g = Σ x over the n_g rows of group g, the second is the sum over different groups g, h, k, l
of n_k n_l ⟨S_g, S_h⟩ - 2 n_l s_hᵀ S_g s_k + (s_g·s_h)(s_k·s_l), divided by the sum of
n_g n_h n_k n_l; the first has tr(S_g) tr(S_h) and tr(S_g) s_h·s_k in their place. Each sum over
different groups is a combination of sums over single groups.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoadapt.geometry._spread import participation_ratio

_ROWS = 256  # rows whose Gram matrix is formed at a time, or n_features if that is more


class GroupSums:
    """Sums over groups of rows less a pivot near their mean; one pass, float64, O(n d²)."""

    def __init__(self, pivot: Tensor, unit: float = 1.0) -> None:
        """Rows less the `pivot` (d,) are divided by `unit`: fourth powers must not overflow."""
        zeros, d = pivot.new_zeros, len(pivot)
        self.pivot, self.unit = pivot, unit
        self.sizes = zeros(5)  # Σ n^k for k = 0 … 4
        self.scatters, self.outer = zeros(3, d, d), zeros(2, d, d)  # Σ n^k S_g, Σ n^k s_g s_gᵀ
        self.vectors = zeros(3, d)  # Σ w s_g for w = 1, n and ‖s_g‖²
        self.products = zeros(2, 2, d)  # Σ n^k S_g s_g and Σ n^k tr(S_g) s_g
        # Σ n^k w for w = ‖S_g‖², s_gᵀ S_g s_g, tr S_g, (tr S_g)², tr S_g ‖s_g‖² and ‖s_g‖⁴
        self.scalars = zeros(3, 6)

    def update(self, read: Callable[[int, int], Any], sizes: NDArray[np.int64]) -> None:
        """Add whole groups of these `sizes`; `read` gives the rows from one number to another."""
        limit, ends, first = max(_ROWS, len(self.pivot)), sizes.cumsum(), 0
        while first < len(sizes):  # groups that fit together, or one group
            start = int(ends[first] - sizes[first])
            last = max(int(np.searchsorted(ends, start + limit, side="right")), first + 1)
            stop = int(ends[last - 1])
            numbers = range(start, stop, limit)
            parts = (torch.as_tensor(read(k, min(k + limit, stop))).to(self.pivot) for k in numbers)
            rows = ((part - self.pivot) / self.unit for part in parts)
            if len(numbers) == 1:
                part = torch.as_tensor(sizes[first:last], device=self.pivot.device)
                self._add_small(next(rows), part)
            else:
                self._add_large(rows, stop - start)
            first = last

    def _add_small(self, rows: Tensor, sizes: Tensor) -> None:
        """Add groups of few rows altogether, by their Gram matrix."""
        number = torch.arange(len(sizes), device=rows.device)
        own = (number[:, None] == number.repeat_interleave(sizes)).to(rows)  # (b, n)
        gram = (rows @ rows.T).mul_(own.T @ own)
        to_sum = gram.sum(1)  # x · s_g
        numbers = own @ torch.stack([gram.square().sum(1), to_sum**2, gram.diagonal()], dim=1)
        self._add(sizes.to(rows), own @ rows, numbers)
        weights = (sizes.to(rows) @ own) ** torch.arange(3, device=rows.device)[:, None]
        self.scatters += (weights[:, None] * rows.T) @ rows
        self.products[0] += (weights[:2] * to_sum) @ rows

    def _add_large(self, parts: Iterable[Tensor], size: int) -> None:
        """Add one group of many rows, given in parts."""
        scatter, total = torch.zeros_like(self.outer[0]), torch.zeros_like(self.pivot)
        for rows in parts:
            scatter.addmm_(rows.T, rows)
            total += rows.sum(0)
        product = scatter @ total
        numbers = torch.stack([scatter.square().sum(), product @ total, scatter.trace()])
        n = total.new_tensor([float(size)])
        self._add(n, total[None], numbers[None])
        weights = n ** torch.arange(3, device=n.device)[:, None]
        self.scatters += weights[:, None] * scatter
        self.products[0] += weights[:2] * product

    def _add(self, n: Tensor, sums: Tensor, numbers: Tensor) -> None:
        """Add b groups: sizes (b,), s_g (b, d), and ‖S_g‖², s_gᵀ S_g s_g and tr S_g (b, 3)."""
        trace, square = numbers[:, 2], sums.square().sum(1)
        powers = n ** torch.arange(5, device=n.device)[:, None]
        more = torch.stack([trace**2, trace * square, square**2], dim=1)
        self.scalars += powers[:3] @ torch.cat([numbers, more], dim=1)
        self.sizes += powers.sum(1)
        self.vectors += torch.stack([powers[0], n, square]) @ sums
        self.products[1] += (powers[:2] * trace) @ sums
        self.outer += (powers[:2, None] * sums.T) @ sums

    def squares(self) -> tuple[Tensor, Tensor]:
        """Estimates of tr(Σ)² and ‖Σ‖², in units; from at least 4 groups."""
        square, product, trace, trace_square, trace_product, _ = self.scalars.T
        traces = trace[:, None, None]
        outer = self.outer.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
        return (
            self._estimate(traces, outer, trace_square, trace_product, self.products[1]),
            self._estimate(self.scatters, self.outer, square, product, self.products[0]),
        )

    def _estimate(
        self, scatters: Tensor, outer: Tensor, square: Tensor, product: Tensor, products: Tensor
    ) -> Tensor:
        """Mean over quadruples, from the scatters of groups, or from their traces as (1, 1)."""
        _, n, n2, n3, n4 = self.sizes
        s, s1, cubic = self.vectors
        of_pairs = torch.einsum("aij,bij->ab", scatters, scatters)
        pairs = (n * n - n2) * (of_pairs[0, 0] - square[0]) - 4 * n * (of_pairs[0, 1] - square[1])
        pairs += 4 * of_pairs[0, 2] + 2 * of_pairs[1, 1] - 6 * square[2]
        inner = torch.einsum("aij,bij->ab", scatters[:2], outer)

        def triples(k: int, m: int) -> Tensor:
            """Sum of n_g^k n_h^m s_hᵀ S_g s_k."""
            left = s1 if m else s
            times = scatters[k] @ s if len(scatters[k]) > 1 else scatters[k, 0] * s
            both = left @ times - inner[k, m] + 2 * product[k + m]
            return both - products[k] @ left - products[k + m] @ s

        of_triples = n * triples(0, 0) - triples(1, 0) - 2 * triples(0, 1)
        quadruples = (s @ s - self.outer[0].trace()) ** 2 + 2 * self.outer[0].square().sum()
        quadruples -= 4 * (s @ self.outer[0] @ s - 2 * s @ cubic) + 6 * self.scalars[0, 5]
        count = n**4 - 6 * n**2 * n2 + 3 * n2**2 + 8 * n * n3 - 6 * n4
        return (pairs - 2 * of_triples + quadruples) / count

    def score(self, n_features: int) -> float:
        """Bias-corrected IsoScore, in [0, 1]; NaN for fewer than 4 groups."""
        trace = self.scalars[0, 2] / self.sizes[1]
        ratio = participation_ratio(*self.squares(), trace, n_features)
        return float((ratio - 1) / (n_features - 1))
