"""Embeddings and small networks on which the trained adapters are tested."""

import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

from isoadapt import LinearHead, adapters
from isoadapt.adapters._engine._network import AdapterNetwork

PENALISED = [adapters.IsotropyLayer, adapters.IStarAdapter, adapters.CosRegAdapter]
PENALISED += [adapters.SpectrumControlAdapter, adapters.TopologicalEntropyAdapter]


def cone_with_head(n=600):
    """Embeddings with one dominant direction, their labels, and a head of the first 600 rows."""
    X, y = make_classification(n, 16, n_informative=6, n_redundant=0, random_state=0)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0]
    X = (X * np.geomspace(1, 0.03, 16)) @ rotation + np.outer(y * 6.0 + 2, rotation[0])
    return X, y, LinearHead.from_estimator(LogisticRegression(max_iter=5000).fit(X[:600], y[:600]))


def network_and_points(d=5, n=60, members=1):
    """A network with changed parameters, and input points."""
    rng = np.random.default_rng(0)
    start = adapters.Affine(np.eye(d) + 0.3 * rng.normal(size=(d, d)), rng.normal(size=d))
    network = AdapterNetwork([start] * members, [])
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return network, torch.tensor(rng.normal(size=(n, d)) * np.arange(1, d + 1) + 1).float()


def distance_from(head, X):
    """Minus the distance of the outputs from those of `head` on the rows X, as a metric."""
    starts = head.outputs(X)

    def scoring(reader, outputs, y):
        return -float(np.abs(outputs[:, None] - starts[None]).sum(2).min(1).mean())

    return scoring


def class_name(value):
    """The name of a test's case that is an estimator."""
    return type(value).__name__ if hasattr(value, "fit") else None


def mean_log(model, X, y):
    """Mean log-probability of the labels 0 and 1, without the checks of scikit-learn's metric."""
    return float(np.log(model.predict_proba(X)[np.arange(len(y)), y]).mean())
