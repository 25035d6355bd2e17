"""
Saving and loading
==================

Save one estimator from texts to predictions, without the weights of the encoder:
``python examples/save_and_load.py [CHECKPOINT]``.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import joblib
import numpy as np

from isoadapt import AdaptedEncoder, LogitPreservingWhitening
from isoadapt.datasets import make_acceptability
from isoadapt.metrics import isoscore

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)

# The adapter uses the head of the checkpoint and preserves its logits, so it needs no labels.
model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(corpus.train_texts)
print(f"IsoScore {isoscore(model.transform(corpus.dev_texts), bias_corrected=True):.4f}")

with TemporaryDirectory() as folder:
    file = Path(folder) / "model.joblib"
    joblib.dump(model, file)
    print(f"{file.stat().st_size / 1e6:.1f} MB; the encoder stays in {checkpoint}")
    loaded = joblib.load(file)  # only load joblib files that you trust

same = np.array_equal(loaded.predict(corpus.dev_texts), model.predict(corpus.dev_texts))
print("same predictions:", same)
