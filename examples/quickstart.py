"""
Quickstart
==========

Measure the embeddings of a fine-tuned model, repair them, and check whether that helped:
``python examples/quickstart.py [CHECKPOINT]``. The default checkpoint is the one that ``make demo``
fine-tunes.
"""

import sys

from isoadapt import IsotropyLayer, load_checkpoint
from isoadapt.datasets import make_acceptability
from isoadapt.metrics import isotropy_report

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)

encoder, head = load_checkpoint(checkpoint)  # the model in two parts, both frozen
train, dev = encoder.transform(corpus.train_texts), encoder.transform(corpus.dev_texts)
print(isotropy_report(dev))

layer = IsotropyLayer(head, random_state=0).fit(train, corpus.train_labels)
print(isotropy_report(layer.transform(dev)))

control = IsotropyLayer(head, alpha=1.0, random_state=0).fit(train, corpus.train_labels)
for name, model in {"as it was": head, "layer": layer, "no penalty": control}.items():
    print(f"{name:>10}: accuracy {model.score(dev, corpus.dev_labels):.4f}")
