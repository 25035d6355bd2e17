"""What the I-STAR penalty adds to a fine-tuning step of MiniLM, in closed form and by svdvals."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._harness import Comparison, compare
from benchmarks.bench_isoscore import check_agreement, isoscore_by_singular_values
from isoadapt.encoders._models import quiet
from isoadapt.geometry import Moments
from isoadapt.losses import IsoScoreLoss

BATCH_SIZE = 32
PRIOR_BATCHES = 16
LAM, ZETA, LR = 1.0, 0.2, 2e-5
SHARES = {"cpu": 0.10, "cuda": 0.03}  # of the step without a penalty, at most

Penalty = Callable[[Tensor, Tensor], Tensor]


def run(quick: bool) -> list[Comparison]:
    """Measure on the CPU."""
    return list(penalty_share(torch.device("cpu"), repeats=5 if quick else 25))


def penalty_share(
    device: torch.device, repeats: int, batch_size: int = BATCH_SIZE
) -> Iterator[Comparison]:
    """Compare steps with the penalty to steps without; the target bounds the penalty's share.

    Penalised is what the head reads, or, as in the paper, the token states of all layers.
    """
    routes: tuple[tuple[str, Penalty, float | None], ...] = (
        (
            "in closed form",
            IsoScoreLoss(ZETA, "linear").to(device),
            1 / (1 + SHARES[device.type]),
        ),
        ("by svdvals", lambda Z, cov: 1 - isoscore_by_singular_values(Z, cov, ZETA), None),
    )
    for place, all_layers in (("head input", False), ("token states of all layers", True)):
        job = Job(device, all_layers, batch_size)
        points = job.forward(job.batches[0], penalised=True)[1].detach()
        check_agreement(points, job.prior, ZETA)
        for route, penalty, target in routes:
            result = compare(
                f"fine-tuning step with I-STAR on {place}, {route}, against without",
                partial(job.step, penalty),
                job.step,
                repeats=repeats,
                target=target,
                n=len(points),
                d=points.shape[1],
                batch_size=batch_size,
                device=device.type,
            )
            yield replace(result, facts={**result.facts, "share": 1 / result.ratio - 1})


class Batch(NamedTuple):
    """Tokenised texts, their labels, and which of the tokens are no padding."""

    inputs: dict[str, Tensor]
    labels: Tensor
    kept: Tensor


class Job:
    """Fine-tuning of MiniLM with a new head; Σ_S comes from all batches, without dropout."""

    def __init__(self, device: torch.device, all_layers: bool, batch_size: int) -> None:
        from transformers import AutoModel

        from isoadapt.datasets import minilm_folder

        self.device, self.all_layers = device, all_layers
        self.batches = _batches(device, batch_size)
        with quiet():
            model = AutoModel.from_pretrained(minilm_folder(), dtype=torch.float32)
        self.model = model.to(device)
        self.head = nn.Linear(self.model.config.hidden_size, 2, device=device)
        parameters = [*self.model.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=LR, fused=True)
        self.prior = self._prior()
        self.model.train()

    def forward(self, batch: Batch, penalised: bool) -> tuple[Tensor, Tensor]:
        """Compute what the head reads, and the points whose isotropy is penalised."""
        states = penalised and self.all_layers
        output = self.model(**batch.inputs, output_hidden_states=states)
        read = F.dropout(output.pooler_output, 0.1, self.model.training)
        if not states:
            return read, read
        layers = output.hidden_states[1:]
        return read, torch.cat([layer.flatten(0, 1)[batch.kept] for layer in layers])

    def step(self, penalty: Penalty | None = None) -> None:
        """Train on the first batch, and wait until the device has done so."""
        batch = self.batches[0]
        read, points = self.forward(batch, penalised=penalty is not None)
        loss = F.cross_entropy(self.head(read), batch.labels)
        if penalty is not None:
            loss = loss + LAM * penalty(points, self.prior)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @torch.no_grad()
    def _prior(self) -> Tensor:
        self.model.eval()
        moments = Moments()
        for batch in self.batches:
            moments.update(self.forward(batch, penalised=True)[1])
        return moments.covariance().float()


def _batches(device: torch.device, size: int) -> list[Batch]:
    from transformers import AutoTokenizer

    from isoadapt.datasets import make_acceptability, minilm_folder

    corpus = make_acceptability(size * PRIOR_BATCHES, 2, random_state=0)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    batches = []
    for start in range(0, len(corpus.train_texts), size):
        rows = slice(start, start + size)
        inputs = tokenizer(list(corpus.train_texts[rows]), padding=True, return_tensors="pt")
        kept = inputs["attention_mask"].flatten().nonzero().squeeze(1)
        labels = torch.tensor(corpus.train_labels[rows])
        batches.append(Batch(dict(inputs.to(device)), labels.to(device), kept.to(device)))
    return batches
