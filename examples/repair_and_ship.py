"""
Repair and ship
===============

Repair the vectors of a classifier, and write a checkpoint that plain transformers loads:
``python examples/repair_and_ship.py [CHECKPOINT]``. The default checkpoint is the one that
``make demo`` fine-tunes.

An adapter that is trained with a head changes the classifier. It is merged into the last layer of
a copy of the checkpoint, which costs nothing at inference. For a folder that also gives the
adapted vectors, see ``to_sentence_transformer``.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
from transformers import pipeline

from isoadapt import AdaptedEncoder, IsotropyLayer
from isoadapt.datasets import make_acceptability
from isoadapt.interop import merge_into_checkpoint
from isoadapt.report import SpectrumDisplay

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)

model = AdaptedEncoder(checkpoint, IsotropyLayer(solver="exact"))
model.fit(corpus.train_texts, corpus.train_labels)
raw = model.pipeline_["encoder"].transform(corpus.dev_texts)
print(f"accuracy before {model.head_.score(raw, corpus.dev_labels):.4f}")
print(f"accuracy after  {model.score(corpus.dev_texts, corpus.dev_labels):.4f}")

# %%
# The merged checkpoint needs no isoadapt, and gives the same labels.

texts = corpus.dev_texts[:100]
with TemporaryDirectory() as folder:
    merged = merge_into_checkpoint(model, checkpoint, Path(folder) / "merged")
    classify = pipeline("text-classification", str(merged), device="cpu")
    labels = [classify.model.config.label2id[each["label"]] for each in classify(texts)]
print("same labels:", np.array_equal(labels, model.predict(texts)))

# %%
# What the adapter changed.

SpectrumDisplay.from_estimator(model.pipeline_["adapter"], raw)
plt.show()
