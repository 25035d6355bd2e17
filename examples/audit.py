"""
Audit a model
=============

How anisotropic are the vectors of a fine-tuned classifier, and what does a repair change?
``python examples/audit.py [CHECKPOINT]``. The default checkpoint is the one that ``make demo``
fine-tunes. On the command line: ``isoadapt audit CHECKPOINT texts.tsv``.
"""

# sphinx_gallery_thumbnail_number = 2
import sys

import matplotlib.pyplot as plt

from isoadapt import LogitPreservingWhitening, load_checkpoint
from isoadapt.datasets import make_acceptability
from isoadapt.metrics import isotropy_report
from isoadapt.report import EmbeddingMapDisplay, SpectrumDisplay

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)
encoder, head = load_checkpoint(checkpoint)
train, dev = encoder.transform(corpus.train_texts), encoder.transform(corpus.dev_texts)

# %%
# The report has reference values of a healthy and of a collapsed encoder beside each figure.

print(isotropy_report(dev, labels=corpus.dev_labels))

# %%
# The spectrum of texts that the adapter was not fitted to, before and after.

adapter = LogitPreservingWhitening(head).fit(train)
SpectrumDisplay.from_estimator(adapter, dev)
plt.show()

# %%
# Both maps have one scale, and each shows its own two principal directions. In the raw vectors, the
# first direction is the class.

EmbeddingMapDisplay.from_estimator(adapter, dev, corpus.dev_labels)
plt.show()
print(isotropy_report(adapter.transform(dev)))
