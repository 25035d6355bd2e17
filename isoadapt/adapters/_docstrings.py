"""What the docstrings of several adapters share."""

import inspect
import json
import re

# The part below "# name" replaces a line <name> in a docstring.
_PARTS = re.findall(
    r"^# (.+)\n((?:(?!# ).*\n)+)",
    """\
# attributes and training
Attributes
----------
<map>
history_ : list of dict
    One entry for each epoch of the fit that chose the epoch, with "epoch", "train_loss" and
    "dur" (seconds). With validation rows, an entry also has "valid_score" (the metric of the
    task) and "valid_cost" (the weighted penalty of the validation rows), and a first entry for
    epoch 0, before training, has only these.
ridge_ : float
    The ridge used, in the second fit if there was one.
n_iter_ : int
    Number of epochs run.
best_epoch_ : int
    Epoch whose weights were kept, from 1.
<common>

Other Parameters
----------------
balance : {"ema", "cumulative"} or None, default=<balance>
    How the task loss and the penalty are balanced. "ema" scales both to a common size by their
    moving means, "cumulative" by their means over all steps so far, see
    :class:`~isoadapt.losses.JointLoss`. None adds the two without scaling.
<smoothing>
head_training : {"frozen", "joint", "alternating"}, default=<head_training>
    "frozen" keeps the head as it is. "joint" trains it together with the adapter.
    "alternating" trains the adapter in odd epochs and the head in even ones.
coordinates : {"whitened", "raw"}, default=<coordinates>
    Coordinates in which the adapter is trained. The fitted map applies to the original
    embeddings in either case. "raw" is unsuitable if the mean of the embeddings is much larger
    than their spread; "whitened" is not. Both are in units of the size of the
    embeddings, so training does not depend on their scale.
ridge : float or "auto", default=<ridge>
    Weight, in the task loss, of the mean squared change of the head's outputs since the start
    of training. It keeps predictions stable if there are few rows: a larger ridge allows less
    change, and 0, as in the papers, allows any change. Logits of classes are compared after
    subtracting their mean, and their squares are summed. Outputs of a regression, in units of
    the standard deviations of the targets, and of a multi-label head have averaged squares.
    "auto" estimates the ridge from left-out rows, as :doc:`/guide/appendix` describes.
lr : float or "auto", default=<lr>
    Learning rate of AdamW. "auto" is 0.001. In whitened coordinates with a frozen head, it is
    0.01 for the outputs outside the row space of the head.
lr_schedule : {"linear", "constant"}, default=<lr_schedule>
    "linear" lowers the learning rate from epoch to epoch, from `lr` in the first epoch to
    ``lr / max_epochs`` in the last. "constant" keeps it.
<batch_size>
<max_epochs>
weight_decay : float, default=<weight_decay>
    Weight decay of AdamW.
validation_fraction : float or None, default=<validation_fraction>
    Fraction of the distinct rows, in [0, 1), that is held out to choose the epoch, stratified
    for classifiers. If the head is fitted here and there are fewer than 10 rows for each
    dimension, head and adapter are then fitted a second time, to all rows and for
    ``best_epoch_`` epochs, without validation. If 0 or None, or if either part would have fewer
    than 4 rows, the adapter is trained on all rows and the last epoch is kept.
<patience>
scoring : str, callable or None, default=<scoring>
    Metric of the task, as in scikit-learn. None is accuracy or R². The last epoch whose score
    is within one standard error of the best score is kept, with or without a penalty. Without
    a head, the score is minus the weighted penalty, and the best epoch is kept.
    A warning is issued if the embeddings before training score higher than that epoch by more
    than one standard error.
<device>
random_state : int, RandomState instance or None, default=<random_state>
    Seed of the validation split, the shuffling and the bootstrap. With None, every fit draws a
    new seed.
<verbose>

# moments
<map>
moments_ : Moments
    Count, mean and scatter of all rows that the adapter was fitted to.
<common>

# common
head_map_ : map
    The map from embeddings to what the head reads, which is `map_`.
<head attributes>

# linear head
head : LinearHead, linear estimator, {"auto", "logistic", "ridge"} or None, default=<head>
    The linear head that is applied to the adapted embeddings, see :doc:`/guide/heads`. "auto"
    is the checkpoint's head in an AdaptedEncoder and on the command line, elsewhere "logistic".
    A LinearHead, or a fitted estimator in ``sklearn.frozen.FrozenEstimator``, is used as it is.
    Any other estimator is cloned and fitted to the embeddings of the training rows first, and
    so are "logistic" and "ridge", whose penalty cross-validation chooses. With None, the
    adapter is trained for the penalty alone.

# smoothing
smoothing : float, default=<smoothing>
    Smoothing factor of the moving means of "ema", in (0, 1]. A larger value gives more weight
    to recent steps.

# batch_size
batch_size : int, default=<batch_size>
    Maximum number of rows in a mini-batch.

# max_epochs
max_epochs : int, default=<max_epochs>
    Maximum number of passes over the training rows.

# patience
patience : int or None, default=<patience>
    Training stops after this many epochs in a row that did not replace the epoch to be kept.
    None never stops early.

# device
device : str, default=<device>
    Device of the computation, such as "cpu" or "cuda"; "auto" is the GPU if there is one.

# verbose
verbose : int, default=<verbose>
    If above 0, a progress bar is shown on a terminal.

# head
head : LinearHead, linear estimator, {"auto", "logistic", "ridge"} or None, default=<head>
    The linear head that is applied to the adapted embeddings, see :doc:`/guide/heads`. "auto"
    is the checkpoint's head in an AdaptedEncoder with labels, elsewhere None: a transformer
    only.
head_training : {"refit", "frozen"}, default=<head_training>
    "refit" fits the head, or one of its kind if it is frozen, to the adapted embeddings, which
    requires y. "frozen" keeps the head, although it was fitted to the original embeddings.

# map
map_ : Affine
    The fitted map.

# head attributes
head_ : LinearHead or None
    The head that is applied to the adapted embeddings.
classes_ : ndarray of shape (n_classes,)
    Sorted class labels; only if the head is a classifier.
n_features_in_ : int
    Number of features of the embeddings.
feature_names_in_ : ndarray of shape (n_features_in_,)
    Names of the features; only if X has feature names that are all strings.
""",
    re.MULTILINE,
)


def fill_docstring(cls: type) -> None:
    """Replace lines such as ``<head>`` by their parts, and ``<name>`` by the class's default."""
    text = inspect.cleandoc(cls.__doc__ or "") + "\n"  # which Python 3.13 does when it compiles
    for marker, part in _PARTS:
        text = text.replace(f"\n<{marker}>\n", f"\n{part.rstrip()}\n")
    for name, value in ((name, getattr(cls, name, None)) for name in dir(cls)):
        shown = json.dumps(value) if isinstance(value, str) else repr(value)
        text = text.replace(f"default=<{name}>", f"default={shown}")
    cls.__doc__ = text
