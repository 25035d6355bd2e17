"""
A penalty of your own
=====================

Train an adapter with the log-determinant as its penalty:
``python examples/own_penalty.py [CHECKPOINT]``. The default checkpoint is the one that
``make demo`` fine-tunes.
"""

import sys

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from isoadapt import PenaltyAdapter, load_checkpoint
from isoadapt.datasets import make_acceptability
from isoadapt.metrics import isoscore
from isoadapt.report import SpectrumDisplay


class LogDeterminant(torch.nn.Module):
    """Distance of the covariance from a multiple of the identity; 0 if it is one."""

    member_axis = True  # Z may hold several fits, which a search trains together

    def forward(self, Z: Tensor, prior_cov: Tensor) -> Tensor:
        """Compute the penalty from Z (n_members, n_rows, d) and prior_cov (n_members, d, d)."""
        centred = Z - Z.mean(-2, keepdim=True)
        cov = 0.5 * (centred.mT @ centred / (Z.shape[-2] - 1) + prior_cov)
        variance = cov.diagonal(dim1=-2, dim2=-1).mean(-1)
        ridge = 1e-4 * variance[:, None, None] * torch.eye(Z.shape[-1], device=Z.device)
        return variance.log() - torch.logdet(cov + ridge) / Z.shape[-1]


checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)
encoder, head = load_checkpoint(checkpoint)
train, dev = encoder.transform(corpus.train_texts), encoder.transform(corpus.dev_texts)

vectors = {}
for lam in (0.0, 1.0):
    adapter = PenaltyAdapter(LogDeterminant(), head, lam=lam, max_epochs=5, random_state=0)
    adapter.fit(train, corpus.train_labels)
    vectors[f"lam={lam:g}"] = adapter.transform(dev)
    score = isoscore(vectors[f"lam={lam:g}"], bias_corrected=True)
    accuracy = adapter.score(dev, corpus.dev_labels)
    print(f"lam={lam:g}: IsoScore {score:.3f}, accuracy {accuracy:.4f}")

# %%
# The spectra without and with the penalty.

SpectrumDisplay.from_embeddings(vectors)
plt.show()
