"""
Keep the geometry while fine-tuning
===================================

Fine-tune with an anchor, a penalty that keeps mean-pooled vectors close to those of the base model:
``python examples/anchored_finetuning.py [MODEL]``. The alternative is to repair them afterwards.
"""

import sys
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt

from isoadapt import TransformerEncoder
from isoadapt.datasets import make_acceptability, minilm_folder
from isoadapt.finetune import finetune_text_classifier
from isoadapt.metrics import isoscore
from isoadapt.report import SpectrumDisplay

base, corpus = sys.argv[1] if len(sys.argv) > 1 else minilm_folder(), make_acceptability()
texts, labels = corpus.train_texts[:640], corpus.train_labels[:640]
vectors = {"before": TransformerEncoder(base, pooling="mean").transform(texts)}
for name, penalty in {"plain": None, "anchored": "anchor"}.items():
    with TemporaryDirectory() as out:
        options = {"penalty": penalty, "lr": 1e-4, "random_state": 0}
        folder = finetune_text_classifier(base, texts, labels, f"{out}/{name}", **options)
        vectors[name] = TransformerEncoder(folder, pooling="mean").transform(texts)
    print(f"{name}: IsoScore {isoscore(vectors[name]):.3f}")
SpectrumDisplay.from_embeddings(vectors)
plt.show()
