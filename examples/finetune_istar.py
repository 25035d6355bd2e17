"""
Fine-tune with I-STAR
=====================

Continue the fine-tuning of a classifier with I-STAR's penalty on the tokens of all layers:
``python examples/finetune_istar.py [CHECKPOINT]``. The default checkpoint is the one that
``make demo`` fine-tunes. A part of the texts is used, to be quick.

λ above zero increases isotropy. λ below zero decreases it; I-STAR's paper reports its best scores
with such λ.
"""

import sys
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from isoadapt.datasets import make_acceptability
from isoadapt.finetune import IsotropyTrainer
from isoadapt.losses import IsoScoreLoss
from isoadapt.report import AnisotropyProfile

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)
texts, labels = corpus.train_texts[:640], corpus.train_labels[:640].tolist()

tokenizer = AutoTokenizer.from_pretrained(checkpoint)
with TemporaryDirectory() as folder:
    trainer = IsotropyTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(checkpoint),
        args=TrainingArguments(
            folder,
            num_train_epochs=1,
            learning_rate=1e-4,
            per_device_train_batch_size=16,
            logging_steps=4,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
        ),
        train_dataset=[
            {**tokenizer(text), "labels": label} for text, label in zip(texts, labels, strict=True)
        ],
        processing_class=tokenizer,
        penalty=IsoScoreLoss(zeta=0.2, form="linear"),
        lam=5.0,
        where="all",
    )
    trainer.train()

logged = [entry for entry in trainer.state.log_history if "loss" in entry]
print(f"logged steps: {len(logged)}")
print({name: round(float(value), 4) for name, value in logged[-1].items() if name != "step"})

# %%
# Isotropy and the parts of the loss over the run.

AnisotropyProfile.from_trainer(trainer)
plt.show()
