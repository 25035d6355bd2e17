"""Reference values of an isotropy report, and the methods that follow from its purpose."""

# The 1,043 sentences of CoLA's dev set, at most 128 tokens each, in float32: embedded by
# all-MiniLM-L6-v2 (mean of the token states, normalised), and by a classifier that was fine-tuned
# from it on CoLA's training set (the input of its head). Both have 384 dimensions.
REFERENCES = {  # figure: healthy, collapsed
    "isoscore_corrected": (0.2440, 0.0002582),
    "isoscore": (0.2235, 0.0002572),
    "ev1": (0.04944, 0.9541),
    "ev2": (0.08253, 0.9582),
    "ev3": (0.1097, 0.9603),
    "anisotropy1": (0.1365, 0.9711),
    "effective_rank_share": (0.3960, 0.003879),
    "two_nn": (3.231, 13.36),
    "mean_cosine": (0.1188, 0.4738),
    "hubness": (1.550, 3.839),
    "antihub_share": (0.01342, 0.08629),
}

ORIGIN = (
    "healthy: all-MiniLM-L6-v2; collapsed: a classifier fine-tuned from it on CoLA; both on the",
    "1,043 dev sentences of CoLA, with 384 dimensions",
)

NEXT_STEPS = (
    "next: LogitPreservingWhitening (keeps a classifier's predictions), Whitening (no head),",
    "IsotropyLayer (trains for the task too), no adapter (an encoder trained for similarity);",
    "measure the effect on your task with compare_adapters or `isoadapt compare`",
)
