"""
Repair and ship
===============

Repair the vectors of a classifier, and write one folder from which sentence-transformers loads the
repaired vectors and plain transformers the classifier:
``python examples/repair_and_ship.py [CHECKPOINT]``. The default checkpoint is the one that
``make demo`` fine-tunes.

The repair needs no labels and changes no prediction. For an adapter that changes the classifier,
see ``merge_into_checkpoint``, which writes the classifier alone.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
from sentence_transformers import SentenceTransformer
from transformers import pipeline

from isoadapt import AdaptedEncoder, LogitPreservingWhitening
from isoadapt.datasets import make_acceptability
from isoadapt.interop import to_sentence_transformer
from isoadapt.metrics import isoscore
from isoadapt.report import SpectrumDisplay

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)

model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(corpus.train_texts)
raw = model.pipeline_["encoder"].transform(corpus.dev_texts)
repaired = model.transform(corpus.dev_texts)
print(f"IsoScore before {isoscore(raw):.4f}, after {isoscore(repaired):.4f}")
print(f"accuracy before and after {model.score(corpus.dev_texts, corpus.dev_labels):.4f}")

# %%
# The folder needs no isoadapt, and gives the repaired vectors and the same labels.

texts = corpus.dev_texts[:100]
with TemporaryDirectory() as folder:
    served = str(to_sentence_transformer(model, checkpoint, Path(folder) / "served"))
    vectors = SentenceTransformer(served, device="cpu").encode(texts)
    classify = pipeline("text-classification", served, device="cpu")
    labels = [classify.model.config.label2id[each["label"]] for each in classify(texts)]
difference = np.abs(vectors - repaired[:100]).max() / np.abs(repaired).max()
print(f"largest difference of the vectors, relative: {difference:.0e}")
print("same labels:", np.array_equal(labels, model.predict(texts)))

# %%
# What the adapter changed.

SpectrumDisplay.from_estimator(model.pipeline_["adapter"], raw)
plt.show()
