"""
Texts from another domain
=========================

Find texts unlike those that a classifier was trained on:
``python examples/outliers.py [CHECKPOINT]``. The default checkpoint is the one that ``make demo``
fine-tunes.

scikit-learn's detectors work on adapted vectors as on any others. They are fitted on the training
texts, and judged by how well they separate sentences of another source from the development texts
of the same corpus, whose words do not occur in training. The area under the ROC curve (AUROC) is
0.5 for a detector that guesses and 1 for a perfect one.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.covariance import OAS
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from isoadapt import LogitPreservingWhitening, load_checkpoint
from isoadapt.datasets import load_similarity_pairs, make_acceptability

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)
pairs = load_similarity_pairs()
own, foreign = corpus.dev_texts, pairs.left + pairs.right
is_foreign = np.repeat([False, True], [len(own), len(foreign)])

encoder, head = load_checkpoint(checkpoint)
train, judged = encoder.transform(corpus.train_texts), encoder.transform(own + foreign)
adapter = LogitPreservingWhitening(head).fit(train)

# %%
# Two detectors that need no adapter
# ----------------------------------
# The confidence of the classifier, and the Mahalanobis distance to the nearest class with a common
# covariance. An invertible affine map would not change a Mahalanobis distance, so it gains nothing
# from an adapter.

means = np.stack([train[corpus.train_labels == label].mean(axis=0) for label in (0, 1)])
residuals = (train - means[corpus.train_labels]).astype(np.float64)
precision = OAS(assume_centered=True).fit(residuals).precision_
from_means = judged[:, None] - means
distances = np.einsum("nci,ij,ncj->nc", from_means, precision, from_means)
scores = {
    "maximum softmax": -head.predict_proba(judged).max(axis=1),
    "Mahalanobis": distances.min(axis=1),
}

# %%
# Two detectors on vectors as they are, centred and adapted
# ---------------------------------------------------------
# The local outlier factor, and the mean cosine distance to the ten nearest training texts.

mean = train.mean(axis=0)
spaces = {
    "raw": (train, judged),
    "centred": (train - mean, judged - mean),
    "adapted": (adapter.transform(train), adapter.transform(judged)),
}
for name, (known, new) in spaces.items():
    factor = LocalOutlierFactor(n_neighbors=20, metric="cosine", novelty=True).fit(known)
    scores[f"local outlier factor, {name}"] = -factor.score_samples(new)
    neighbours = NearestNeighbors(n_neighbors=10, metric="cosine").fit(known)
    scores[f"10 nearest neighbours, {name}"] = neighbours.kneighbors(new)[0].mean(axis=1)

areas = {name: roc_auc_score(is_foreign, values) for name, values in sorted(scores.items())}
for name, area in areas.items():
    print(f"{name:>30}: AUROC {area:.3f}")

# %%
# With the checkpoint of ``make demo``, no detector comes close to a perfect one. Compare them on
# texts that yours will meet.

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
colours = ["tab:blue" if name.endswith("adapted") else "tab:gray" for name in areas]
axes.barh(list(areas), list(areas.values()), color=colours)
axes.axvline(0.5, color=plt.rcParams["text.color"], linewidth=1)
axes.set(xlim=(0.4, 1), xlabel="AUROC (0.5: a guess, 1: perfect)")
plt.show()
