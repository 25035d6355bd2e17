"""Search the layer's parameters over texts: python examples/grid_search.py [CHECKPOINT].

The folds are made of texts that the encoder was not fine-tuned on: inside its own training
texts no resampling can tell whether an adapter helps.
"""

import sys

from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline

from isoadapt import IsotropyLayer, load_checkpoint
from isoadapt.datasets import make_acceptability

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)
texts, labels = corpus.dev_texts, corpus.dev_labels
twins = [row // 2 for row in range(len(texts))]  # a sentence and its twin share a fold

encoder, head = load_checkpoint(checkpoint)
pipeline = make_pipeline(encoder, IsotropyLayer(head, max_epochs=10, random_state=0))
search = GridSearchCV(
    pipeline,
    {"isotropylayer__alpha": [0.1, 0.5, 1.0], "isotropylayer__lr": [1e-3, 3e-3]},
    cv=GroupKFold(2),
    scoring=["accuracy", "neg_log_loss"],
    refit="accuracy",
)
search.fit(texts, labels, groups=twins)

results = search.cv_results_
for parameters, accuracy, loss in zip(
    results["params"],
    results["mean_test_accuracy"],
    results["mean_test_neg_log_loss"],
    strict=True,
):
    print(f"accuracy {accuracy:.4f}  cross-entropy {-loss:.4f}  {parameters}")
print("best:", search.best_params_)
