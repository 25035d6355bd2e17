"""How the comparisons are measured, as text of the report."""

from benchmarks.quality._comparison_blocks import REPETITIONS
from benchmarks.quality._comparison_text import FAMILY
from benchmarks.quality._comparison_trials import (
    BASE_ACCURACY,
    CORRELATIONS,
    EFFECT,
    FOLDS,
    N_NOISE,
    N_PAIRS,
    N_PLANTED,
    N_TRAIN,
    noise_precision,
)

_POINTS = (
    "Stored embeddings: adapters are fitted to the training rows, on which the encoder was "
    "fine-tuned, and judged on the rows of dev (for MRPC and SST-2 dev and test) that are no "
    "copies of training rows. The head is that of the checkpoint. STS-B: the 1,379 test pairs, "
    "each text embedded alone; some of MRPC's training sentences occur in them. “same class” is "
    "the precision of the ten nearest judged rows.",
    "Differences are those from no adapter with their 95 % intervals; p Holm is adjusted for all "
    "adapters of the use. A bold score is credited: better than no adapter and than its hardest "
    "control. changed: predictions that differ from those without an adapter.",
    "Seconds are those of one process with one thread, while other programs kept both cores busy; "
    'CPU seconds leave the waiting out. "all" ran at low priority for a part of the time.',
    f"Noise: {N_NOISE} judged rows of 8 dimensions (and as many training rows for the protocol "
    "with test rows) with random labels, and four adapters with a refitted logistic head: "
    "AllButTheTop, ClusterIsotropy, IsoBN, which changes hardly any prediction, and Whitening to 4 "
    "components. “any adapter differs” counts trials with a p-value of at most 0.05 in either "
    "direction after Holm's adjustment. The next column is the p-value of a one-sided binomial "
    "test that the true rate is at most 5 %.",
    f"Planted: {N_PLANTED:,} judged rows ({N_TRAIN} other rows to fit to, or cross-validation of "
    f"all). A sign predicts the label with an accuracy of {BASE_ACCURACY}, and the product of two "
    f"other signs with {BASE_ACCURACY + EFFECT:.2f}. A linear head cannot find the product; the "
    "planted adapter computes it, and a logistic head is fitted to the result. Discordant rows are "
    "those that exactly one of both predicts correctly; the fewer they are, the larger is the "
    "power. “found, family of 1” is the share of trials in which the adapter is shown to be better "
    f"if it is the only one. “found, family of {FAMILY}” is that for the smallest p-value among "
    f"{FAMILY} adapters, which Holm's adjustment multiplies by their number.",
    f"Coverage: of the planted adapter, or of AllButTheTop for noise. Similarity: {N_PAIRS} pairs "
    "whose cosines and scores are joined by a Gaussian copula with a correlation of "
    f"{CORRELATIONS[0]} before and {CORRELATIONS[1]} after the adapter, so that the rank "
    "correlation is known. For noise, the expected precision of neighbours is 0.5 among test rows "
    f"and {noise_precision(FOLDS):.3f} in stratified folds. The p-value is that of a two-sided "
    "binomial test; at a level of 5 %, some of so many tests are rejected by chance.",
    f"Each setting has up to {REPETITIONS} repetitions with the seeds 0, 1, …; the tables say how "
    "many were run. ± is 1.96 standard errors.",
)

PROTOCOL_TEXT = "\n".join(f"- {point}" for point in _POINTS)
