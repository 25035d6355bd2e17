"""
Keep the geometry while fine-tuning
===================================

Fine-tune with a penalty of your own, which holds mean-pooled vectors near those of before:
``python examples/anchored_finetuning.py [MODEL]``. The alternative is to repair them afterwards.
"""

import sys
from tempfile import gettempdir

import matplotlib.pyplot as plt
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from isoadapt import TransformerEncoder
from isoadapt.datasets import make_acceptability, minilm_folder
from isoadapt.finetune import IsotropyTrainer
from isoadapt.metrics import isoscore
from isoadapt.report import SpectrumDisplay


class Anchor(torch.nn.Module):
    """1 minus the mean cosine between a text's mean-pooled tokens and its vector from before."""

    def __init__(self, vectors):
        super().__init__()
        self.register_buffer("vectors", torch.as_tensor(vectors), persistent=False)

    def forward(self, points, labels):
        """Compute the penalty of tokens (n, d), whose labels are the numbers of their texts."""
        texts, numbers = labels.unique(return_inverse=True)
        sums = points.new_zeros(len(texts), points.shape[1]).index_add(0, numbers, points)
        return 1 - torch.cosine_similarity(sums, self.vectors[texts]).mean()


def finetune(base, tokens, classes, anchor=None, lam=1.0, seed=0, **arguments):
    """Fine-tune a model. The labels of its rows are numbers, by which the anchor finds vectors."""
    options = {"save_strategy": "no", "report_to": "none", "use_cpu": True, "seed": seed}
    classes, loss = torch.as_tensor(classes), torch.nn.functional.cross_entropy
    load = AutoModelForSequenceClassification.from_pretrained
    torch.manual_seed(seed)  # of the new head
    trainer = IsotropyTrainer(
        model=load(base, num_labels=len(classes.unique()), dtype=torch.float32),
        args=TrainingArguments(gettempdir(), **options, **arguments),
        train_dataset=[{**row, "labels": number} for number, row in enumerate(tokens)],
        processing_class=AutoTokenizer.from_pretrained(base),
        compute_loss_func=lambda outputs, labels, **_: loss(outputs.logits, classes[labels]),
        penalty=anchor,
        lam=lam,
        where="last",
    )
    trainer.train()
    return trainer.model, trainer.processing_class


if __name__ == "__main__":
    base, corpus = sys.argv[1] if len(sys.argv) > 1 else minilm_folder(), make_acceptability()
    texts, classes = corpus.train_texts[:640], corpus.train_labels[:640].tolist()
    vectors = {"before": TransformerEncoder(base, pooling="mean").transform(texts)}
    anchor = {"anchor": Anchor(vectors["before"]), "lam": 0.1}
    for name, penalty in {"plain": {}, "anchored": anchor}.items():
        tokens = map(AutoTokenizer.from_pretrained(base), texts)
        model = finetune(base, tokens, classes, learning_rate=1e-4, **penalty)
        vectors[name] = TransformerEncoder(model, pooling="mean").transform(texts)
        print(f"{name}: IsoScore {isoscore(vectors[name]):.3f}")
    SpectrumDisplay.from_embeddings(vectors)
    plt.show()
