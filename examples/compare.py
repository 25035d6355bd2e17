"""
Compare adapters on your own task
=================================

Does an adapter help, and for which use of the vectors? ``python examples/compare.py [CHECKPOINT]``.
The default checkpoint is the one that ``make demo`` fine-tunes. On the command line:
``isoadapt compare train.tsv --model CHECKPOINT --test dev.tsv --encoder-saw``.

The adapters are fitted to the texts that the encoder was fine-tuned on, and judged on others.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

from isoadapt import load_checkpoint
from isoadapt.datasets import load_similarity_pairs, make_acceptability
from isoadapt.model_selection import Similarity, compare_adapters
from isoadapt.report import ComparisonDisplay

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)
pairs = load_similarity_pairs()
encoder, head = load_checkpoint(checkpoint)
left, right = np.split(encoder.transform(pairs.left + pairs.right), 2)  # in one call

comparison = compare_adapters(
    encoder.transform(corpus.train_texts),
    corpus.train_labels,
    adapters="fast",
    head=head,
    X_test=encoder.transform(corpus.dev_texts),
    y_test=corpus.dev_labels,
    encoder_saw=True,
    uses=[Similarity(left, right, pairs.scores)],
    random_state=0,
)
print(comparison.verdict())

# %%
# Gains that the tests show are filled in blue. Controls are grey.

ComparisonDisplay.from_comparison(comparison)
plt.show()

# %%
# The best adapter for similarity that guarantees the predictions, fitted to all training texts.

print(comparison.best_adapter("similarity", same_predictions=True))
