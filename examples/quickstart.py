"""
Quickstart
==========

Measure the vectors of a fine-tuned classifier, repair them, and check what that changed:
``python examples/quickstart.py [CHECKPOINT]``. The default checkpoint is the one that ``make demo``
fine-tunes.
"""

import sys

from isoadapt import LogitPreservingWhitening, load_checkpoint
from isoadapt.datasets import load_similarity_pairs, make_acceptability
from isoadapt.metrics import isotropy_report, similarity_correlation

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus, pairs = make_acceptability(random_state=0), load_similarity_pairs()

encoder, head = load_checkpoint(checkpoint)  # the model in two parts, both frozen
adapter = LogitPreservingWhitening(head).fit(encoder.transform(corpus.train_texts))

dev = encoder.transform(corpus.dev_texts)
left, right = encoder.transform(pairs.left), encoder.transform(pairs.right)
print(isotropy_report(adapter.transform(dev)))
for name, adapt in {"before": lambda X: X, "after": adapter.transform}.items():
    found = similarity_correlation(adapt(left), adapt(right), pairs.scores)
    accuracy = head.score(adapt(dev), corpus.dev_labels)
    print(f"{name}: similarity {found:.3f}, accuracy {accuracy:.4f}")
