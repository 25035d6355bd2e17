"""
A grid search over several processes
====================================

``GridSearchCV`` over the workers of a dask cluster: ``python examples/distributed_grid.py
[CHECKPOINT]``. The default checkpoint is the one that ``make demo`` fine-tunes. The example needs
dask: ``pip install ".[dask]"``.

All workers of this machine share one cache of embeddings, so each text is encoded once.
"""

import sys

import joblib
import matplotlib.pyplot as plt
from dask.distributed import Client
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline

from isoadapt import ExactIsotropyLayer, load_checkpoint
from isoadapt.datasets import make_acceptability
from isoadapt.model_selection import BestAboveFloor, make_isotropy_scorer
from isoadapt.report import SearchFrontDisplay


def main() -> None:
    """Search; worker processes import this file, so nothing else may run on import."""
    checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
    corpus = make_acceptability(random_state=0)
    encoder, head = load_checkpoint(checkpoint)
    encoder.set_params(cache="isoadapt-demo/cache")
    search = GridSearchCV(
        make_pipeline(encoder, ExactIsotropyLayer(head)),
        {"exactisotropylayer__alpha": [0.2, 0.5, 0.8, 1.0]},
        cv=GroupKFold(2),
        scoring={
            "accuracy": "accuracy",
            "isoscore": make_isotropy_scorer("isoscore", bias_corrected=True),
        },
        refit=BestAboveFloor(task="accuracy", isotropy="isoscore", floor=0.1),
    )
    twins = [row // 2 for row in range(len(corpus.dev_texts))]
    # On this machine only: the dashboard would listen on all interfaces.
    with (
        Client(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None),
        joblib.parallel_config("dask"),
    ):
        search.fit(corpus.dev_texts, corpus.dev_labels, groups=twins)
    print("best:", search.best_params_)
    SearchFrontDisplay.from_estimator(search)
    plt.show()


if __name__ == "__main__":
    main()
