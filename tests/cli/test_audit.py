"""The audit as a user meets it."""

import json

import pandas as pd
import pytest

from isoadapt import TransformerEncoder
from isoadapt.encoders import layer_report
from isoadapt.metrics import isotropy_report, match_threshold
from tests.cli.command_line import X, succeed, texts_and_labels


def audited(*arguments):
    return json.loads(succeed("audit", *arguments, "--json").stdout)


def write(name, *rows, header="sentence"):
    with open(name, "w") as file:
        file.write("\n".join([header, *rows]) + "\n")
    return name


def expected(rows, **options):
    """The figures of a report as JSON gives them."""
    return json.loads(json.dumps(isotropy_report(rows, **options).to_dict()))


def test_figures_references_and_next_steps_of_a_matrix(files):
    found = audited("X.npy")
    assert found.items() >= expected(X).items()
    assert "truncation" not in found
    assert found["match_threshold"] == pytest.approx(match_threshold(X)._asdict())
    healthy, collapsed = (found["references"][name] for name in ("healthy", "collapsed"))
    assert healthy.keys() == collapsed.keys() > {"isoscore_corrected", "ev1", "mean_cosine"}
    shown = succeed("audit", "X.npy").stdout
    assert shown.startswith(f"{found['verdict']}\nIsotropyReport: 150 × 5\n")
    assert "truncated" not in shown
    rows = [line for line in shown.splitlines() if line.startswith("  ")]
    full = succeed("audit", "X.npy", "--all").stdout
    match = "{:.6f} ({:.6f} to {:.6f})".format(*match_threshold(X))
    assert full.endswith(f"match threshold    {match}, exceeded by 0.1 % of random pairs\n")
    assert len([line for line in full.splitlines() if line.startswith("  ")]) == len(rows) + 7


@pytest.mark.filterwarnings("ignore:.*3 × n_features:UserWarning")
class TestTexts:
    def test_the_pooled_vectors_with_classes(self, files):
        texts, labels = texts_and_labels()
        completed = succeed("audit", "my-model", "texts.tsv", "--label", "label")
        encoder = TransformerEncoder("my-model")
        report = isotropy_report(encoder.transform(texts), labels=labels)
        title, *_, last = str(report).splitlines()
        lines = completed.stdout.splitlines()
        assert completed.stdout.startswith(report.verdict(head=True))
        assert {title, last} <= set(lines)
        assert any(line.startswith("  label 2: n=20") for line in lines)
        assert "Texts: 60 texts, none truncated at max_length=64 tokens" in lines
        [vectors] = [line for line in lines if line.startswith("Vectors: one for each text, ")]
        assert vectors.endswith("last linear layer (pooling='head_input')")

    def test_layers(self, files):
        found = audited("my-model", "texts.tsv", "--layers", "--max-length", 3)
        encoder = TransformerEncoder("my-model", max_length=3)
        texts = texts_and_labels()[0]
        report = layer_report(encoder, texts)
        pd.testing.assert_frame_equal(pd.DataFrame(found["layers"]).set_index("layer"), report)
        assert report["n_tokens"].tolist() == 3 * [180]
        assert found["n_texts"] == 60
        assert found["pooled"] == expected(encoder.transform(texts))

    def test_the_share_of_truncated_texts(self, files):
        texts = [f"{'cat ' * n}".strip() for n in (1, 2, 3, 6, 8, 8)]  # 2 more are special tokens
        arguments = ["my-model", write("t.tsv", *texts), "--max-length", 7]
        expected = {"max_length": 7, "n_texts": 6, "n_truncated": 3}
        expected |= {"share_of_texts_truncated": 0.5, "share_of_tokens_kept": 33 / 40}
        assert audited(*arguments, "--layers")["truncation"] == expected
        line = "Texts: 6 texts, 3 truncated at max_length=7 tokens (0.825 of all tokens are kept)"
        assert line in succeed("audit", *arguments).stdout.splitlines()

    def test_pairs_together_or_each_alone(self, files):
        pairs = [("the cat", "a dog"), ("the cat sat on the mat", "a dog ran"), ("cat", "dog")]
        pairs += [("dog", "cat")]
        rows = ["\t".join(pair) for pair in pairs]
        arguments = ["my-model", write("p.tsv", *rows, header="sentence1\tsentence2")]
        found = audited(*arguments, "--max-length", 7)
        assert found["truncation"]["n_truncated"] == 1  # of 7, 12, 5 and 5 tokens
        assert found["match_threshold"] is None  # of 6 pairs
        assert found["truncation"]["share_of_tokens_kept"] == 24 / 29
        assert "Vectors: one for each pair of texts, " in succeed("audit", *arguments).stdout
        texts = [text for column in zip(*pairs, strict=True) for text in column]
        separate = succeed("audit", *arguments, "--separately").stdout
        alone = succeed("audit", "my-model", write("t.tsv", *texts)).stdout
        assert separate == alone.replace("t.tsv", "p.tsv")
