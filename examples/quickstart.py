"""
Quickstart
==========

Measure the vectors of a fine-tuned classifier, repair them, and check what that changed:
``python examples/quickstart.py [CHECKPOINT]``. The default checkpoint is the one that ``make demo``
fine-tunes.
"""

import sys

import matplotlib.pyplot as plt

from isoadapt import LogitPreservingWhitening, load_checkpoint
from isoadapt.datasets import load_similarity_pairs, make_acceptability
from isoadapt.metrics import isotropy_report, similarity_correlation

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus, pairs = make_acceptability(random_state=0), load_similarity_pairs()

encoder, head = load_checkpoint(checkpoint)  # the model in two parts, both frozen
adapter = LogitPreservingWhitening(head).fit(encoder.transform(corpus.train_texts))

dev = encoder.transform(corpus.dev_texts)
left, right = encoder.transform(pairs.left), encoder.transform(pairs.right)
report = isotropy_report(adapter.transform(dev))
print(report)
for name, adapt in {"before": lambda X: X, "after": adapter.transform}.items():
    found = similarity_correlation(adapt(left), adapt(right), pairs.scores)
    accuracy = head.score(adapt(dev), corpus.dev_labels)
    print(f"{name}: similarity {found:.3f}, accuracy {accuracy:.4f}")

# %%
# The repaired vectors beside those of a healthy and of a collapsed encoder.

report.plot()
plt.show()
