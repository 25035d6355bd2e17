"""
Use your classifier's vectors for search
========================================

Repair the vectors of a fine-tuned classifier, then search with them:
``python examples/classifier_search.py [CHECKPOINT]``. The default checkpoint is the one that
``make demo`` fine-tunes.

The adapter is fitted on the classifier's own training texts, without labels. One pass of the
encoder then gives the predictions of the classifier, unchanged, and vectors for search. The
base model, all-MiniLM-L6-v2, is shown for comparison. It is better at search, so use it if
you can run two models.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.preprocessing import normalize

from isoadapt import AdaptedEncoder, LogitPreservingWhitening, TransformerEncoder
from isoadapt.datasets import load_similarity_pairs, make_acceptability, minilm_folder
from isoadapt.metrics import retrieval_report, similarity_correlation

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)
pairs = load_similarity_pairs()
texts = pairs.left + pairs.right

# %%
# Fit the adapter, and compare the predictions
# --------------------------------------------
# ``transform_predict`` gives the vectors and the predictions of one pass.

model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(corpus.train_texts)
encoder, head = model.pipeline_["encoder"], model.head_
raw = encoder.transform(texts)
adapted, predictions = model.transform_predict(texts)
print(f"predictions changed: {(predictions != head.predict(raw)).sum()} of {len(texts)}")

# %%
# Search
# ------
# The queries are the first sentences of all pairs with nearly the same meaning. The documents are
# the second sentences of all pairs. A query has one relevant document. Subtracting the mean is a
# baseline that costs nothing.

mean = np.asarray(model.pipeline_["adapter"].moments_.mean)  # of the training texts
vectors = {
    "classifier": raw,
    "classifier, centred": raw - mean,
    "classifier, adapted": adapted,
    "all-MiniLM-L6-v2": TransformerEncoder(minilm_folder()).transform(texts),
}
asked = np.flatnonzero(pairs.scores >= 4)
correlations, found = {}, {}
for name, X in vectors.items():
    left, right = np.split(X, 2)
    correlations[name] = similarity_correlation(left, right, pairs.scores)
    found[name] = [retrieval_report(left[asked], right, asked, k=k).recall for k in range(1, 11)]
    mrr = retrieval_report(left[asked], right, asked).mrr
    print(f"{name:>20}: Spearman {correlations[name]:.3f}, MRR@10 {mrr:.3f}")

# %%
# The cosines by the grade of the pair, before and after, and the share of queries whose document
# is among the nearest k.

figure, (before, after, hits) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
jitter = np.random.default_rng(0).uniform(-0.2, 0.2, len(pairs.scores))
for axes, name in ((before, "classifier"), (after, "classifier, adapted")):
    left, right = np.split(normalize(vectors[name]), 2)
    axes.scatter(pairs.scores + jitter, (left * right).sum(axis=1), s=12, alpha=0.7)
    title = f"{name}\nSpearman {correlations[name]:.2f}"
    axes.set(xlabel="grade of the pair", ylabel="cosine", ylim=(-1.05, 1.05), title=title)
for (name, shares), dashes in zip(found.items(), ["-", "--", "-.", ":"], strict=True):
    hits.plot(range(1, 11), shares, dashes, marker=".", label=name)
hits.set(xlabel="k", ylabel="recall at k (greater is better)", ylim=(0, 1.05), title="Search")
hits.legend(fontsize=8)
plt.show()
