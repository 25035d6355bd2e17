"""
Images, and an encoder of your own
==================================

Find similar images with the vectors of an image classifier, before and after a repair:
``python examples/images.py``. A small vision transformer learns all ten digits, and is then
fine-tuned on the digits 0 to 4 alone.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors
from transformers import ViTConfig, ViTForImageClassification

from isoadapt import AdaptedEncoder, LinearHead, LogitPreservingWhitening


class ImageEncoder(TransformerMixin, BaseEstimator):
    """The vectors of a vision transformer that its last linear layer reads."""

    def __init__(self, folder):
        self.folder = folder

    def fit(self, X, y=None):
        """Learn nothing."""
        return self

    def transform(self, X):
        """Return the vectors (n, d) of images (n, channels, height, width)."""
        network = ViTForImageClassification.from_pretrained(self.folder).eval().vit
        with torch.inference_mode():
            return network(torch.tensor(X)).last_hidden_state[:, 0].numpy()

    def head(self, y=None):
        """Return the last linear layer, whose classes are the digits from 0 on."""
        layer = ViTForImageClassification.from_pretrained(self.folder).classifier
        weight, bias = (each.numpy(force=True) for each in layer.parameters())
        return LinearHead(weight, bias, classes=range(len(bias)))


def train(model, X, y, n_epochs, folder):
    """Train all weights of a classifier, and return it as an encoder."""
    X, y, optimizer = *map(torch.tensor, (X, y)), torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(n_epochs):
        for rows in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            model(X[rows], labels=y[rows]).loss.backward()
            optimizer.step()
    model.save_pretrained(folder)
    return ImageEncoder(folder)


X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32).reshape(-1, 1, 8, 8)
kept, seen = np.arange(len(y)) % 2 == 0, y < 5  # for training, the rest is held out
sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 48, "intermediate_size": 96}
layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_channels": 1, "num_labels": 10}
torch.manual_seed(0)
model, parent = ViTForImageClassification(ViTConfig(**sizes, **layers)), TemporaryDirectory()
base = train(model, X[kept], y[kept], 15, f"{parent.name}/base")
model.classifier, model.config.num_labels = torch.nn.Linear(48, 5), 5
tuned = train(model, X[kept & seen], y[kept & seen], 20, f"{parent.name}/tuned")
repaired = AdaptedEncoder(tuned, LogitPreservingWhitening()).fit(X[kept & seen])
before = tuned.head().predict(tuned.transform(X[~kept]))
print(f"predictions changed: {(repaired.predict(X[~kept]) != before).sum()} of {len(before)}")

# %%
# The share of the ten nearest neighbours that show the same digit, among held-out images. Each row
# of the pictures is an image of a digit from 5 to 9 and its neighbours, the wrong ones in red.

figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
encoders = {"base model": base, "fine-tuned": tuned, "repaired": repaired}
for axis, (name, encoder) in zip(axes, encoders.items(), strict=True):
    for group, rows in {"0 to 4": ~kept & seen, "5 to 9": ~kept & ~seen}.items():
        nearest = NearestNeighbors(n_neighbors=10, metric="cosine").fit(encoder.transform(X[rows]))
        found, digits = nearest.kneighbors(return_distance=False), y[rows]
        share = (digits[found] == digits[:, None]).mean()
        print(f"{name}, digits {group}: {share:.3f}")
    queries = np.argsort(digits, kind="stable")[20::45]
    shown = np.column_stack([queries, found[queries]])
    is_black = (digits[shown] == digits[queries, None])[..., None, None, None]
    ink = np.pad(X[rows][shown, 0], [(0, 0), (0, 0), (1, 1), (1, 1)])[..., None]
    axis.imshow((1 - ink * (is_black | (np.arange(3) > 0))).swapaxes(1, 2).reshape(100, 110, 3))
    axis.set(title=f"{name}: {share:.2f}", xticks=[], yticks=[])
plt.show()
