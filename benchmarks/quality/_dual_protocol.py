"""How each column of the table on vectors of classifiers is measured."""

from benchmarks.quality._checkpoints import MANY, RECIPES
from benchmarks.quality._dual_cells import (
    CLASSES,
    HUBNESS,
    MEDIAN_BITS,
    OUTLIERS,
    OWN_TASK,
    PARAPHRASE,
    SEARCH,
    SIGN_BITS,
    STSB,
)
from benchmarks.quality._dual_rows import BEST_LAYER
from benchmarks.quality._dual_texts import (
    LAYER_PAIRS,
    MAX_OUTLIERS,
    MAX_OWN,
    MAX_PAIRS,
    MAX_ROWS,
    MAX_TARGET,
)

_SST2, _MANY = RECIPES["sst2_sentence"], RECIPES[MANY]

_POINTS = (
    "Vectors are inputs of the head, of single texts cut at 256 tokens; all neighbours are exact, "
    "by cosine. ± is the standard error of 200 bootstrap samples, of the rows, pairs or queries "
    "of the column; the maps are not fitted again.",
    f"Checkpoints: sst2-minilm is all-MiniLM-L6-v2 after {max(_SST2.epochs)} epochs on "
    f"{_SST2.rows} training sentences of SST-2, and phenomenon-12-minilm after "
    f"{max(_MANY.epochs)} epochs on {_MANY.rows} generated sentences of twelve classes; both are "
    "far from what all training rows would give. cola-minilm and mrpc-minilm are trained fully.",
    "Maps are fitted without labels on single training texts of the task: all of CoLA's, "
    f"{MAX_OWN:,} of the other tasks; “STS-B texts” are {MAX_TARGET:,} training texts of STS-B. "
    "From both, all texts that a column is evaluated on are left out, with the same spelling. "
    "The encoders were fine-tuned on all rows: 16 of CoLA's dev sentences are also training "
    "sentences, and some of MRPC's training sentences are in STS-B.",
    "Logistic heads are standardised logistic regressions on the rows that the checkpoint was "
    f"fine-tuned on: all of CoLA's, {MAX_PAIRS:,} of MRPC's pairs. On MRPC, heads read the vector "
    "of a joined pair.",
    f"{BEST_LAYER}: the layer of which the mean-pooled vectors have the highest correlation on "
    f"{LAYER_PAIRS} pairs of STS-B dev; layer 0 is the input of the first layer. The encoder "
    "before fine-tuning has its own pooling, the mean of the last layer at unit length.",
    f"{OWN_TASK}: Matthews correlation on CoLA dev, otherwise accuracy: MRPC dev, SST-2 dev, and "
    f"{MAX_ROWS:,} generated sentences of other words.",
    f"{STSB}: Spearman correlation of cosines with the scores of the 1,379 test pairs. "
    f"{SIGN_BITS} and {MEDIAN_BITS}: the same of codes of one bit a dimension (48 bytes), split at "
    "0 or at the median of the texts that the maps are fitted on.",
    f"{SEARCH}: the 1,249 entailed hypotheses of RTE's training split search its 2,379 distinct "
    f"premises. {PARAPHRASE}: the first sentences of the 1,147 paraphrases of MRPC's test split "
    "search the 1,135 distinct second ones.",
    f"{CLASSES}: share of the ten nearest of the other evaluated rows that have the same label; "
    "on MRPC, of vectors of joined pairs.",
    f"{OUTLIERS}: {MAX_OUTLIERS} sentences of WikiText among the single texts of the evaluated "
    "rows, by the mean cosine distance to the ten nearest of the texts that the maps are fitted "
    "on.",
    f"{HUBNESS}: skewness of the 10-occurrence among the 2,379 premises; smaller is better.",
    "changed: predictions on the evaluated rows that differ from the checkpoint's. logits: largest "
    "difference from the checkpoint's logits, relative to the largest logit, for float32 vectors.",
)
PROTOCOL_TEXT = "\n".join(f"- {point}" for point in _POINTS)
