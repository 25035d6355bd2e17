"""
Grid search over texts
======================

Search an adapter's parameters over texts: ``python examples/grid_search.py [CHECKPOINT]``.

The texts are encoded once and cached, and all candidates are trained together. The folds consist
of texts that the encoder was not fine-tuned on, since cross-validation on its training texts
cannot show whether an adapter helps.
"""

import sys

import matplotlib.pyplot as plt
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline

from isoadapt import IStarAdapter, load_checkpoint
from isoadapt.datasets import make_acceptability
from isoadapt.model_selection import AdapterSearchCV, BestAboveFloor, make_isotropy_scorer
from isoadapt.report import SearchFrontDisplay

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)
texts, labels = corpus.dev_texts, corpus.dev_labels
twins = [row // 2 for row in range(len(texts))]  # both sentences of a minimal pair share a fold

encoder, head = load_checkpoint(checkpoint)
encoder.set_params(cache="isoadapt-demo/cache")  # the next run reads all embeddings from the cache
pipeline = make_pipeline(encoder, IStarAdapter(head, max_epochs=10, random_state=0))
search = AdapterSearchCV(
    pipeline,
    {"istaradapter__lam": [-1.0, 0.0, 0.5, 1.0], "istaradapter__zeta": [0.2, 0.8]},
    cv=GroupKFold(2),
    scoring={
        "accuracy": "accuracy",
        "neg_log_loss": "neg_log_loss",
        "isoscore": make_isotropy_scorer("isoscore", bias_corrected=True),
    },
    refit=BestAboveFloor(task="accuracy", isotropy="isoscore", floor=0.1),
    verbose=1,
)
search.fit(texts, labels, groups=twins)

results = search.cv_results_
for parameters, accuracy, loss, isoscore in zip(
    results["params"],
    results["mean_test_accuracy"],
    results["mean_test_neg_log_loss"],
    results["mean_test_isoscore"],
    strict=True,
):
    print(
        f"accuracy {accuracy:.4f}  cross-entropy {-loss:.4f}  IsoScore {isoscore:.4f}  {parameters}"
    )
print("best:", search.best_params_)

# %%
# The candidates by task and isotropy. No candidate is better in both than those of the Pareto set.

SearchFrontDisplay.from_estimator(search)
plt.show()
