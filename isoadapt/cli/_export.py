"""Implementation of ``isoadapt export`` and ``isoadapt check``."""

from pathlib import Path

from isoadapt._utils.state import own_state
from isoadapt.cli._options import Console, recorded_model
from isoadapt.interop import merge_into_checkpoint
from isoadapt.interop._folder import read_folder
from isoadapt.interop._loaders import check_loader
from isoadapt.interop._onnx import write_graph
from isoadapt.interop._pipeline import take_apart
from isoadapt.interop._reference import read_reference
from isoadapt.interop._sentence_transformer import computes, write_sentence_folder
from isoadapt.interop._served import Served


@own_state(models=True)
def export(
    folder: Path,
    model: Path | None,
    out: Path,
    pooling: str,
    normalize: bool,
    onnx: bool,
    overwrite: bool,
    console: Console,
) -> None:
    """Write an adapter and its encoder as one folder, and print how to load it."""
    adapter, base_model = read_folder(folder)
    served = Served.of(adapter, recorded_model(model, base_model), pooling)
    options = {"normalize": normalize, "overwrite": overwrite}
    adapted, classifies = served.opened.describe(), served.opened.backbone.head is not None
    lines = [f"Exported: {out}", f"Adapted: {adapted}"]
    if onnx:
        write_graph(served, out / "model.onnx", **options)
        lines.append(f"Use: {out / 'README.md'} shows it, with onnxruntime and tokenizers")
    else:
        write_sentence_folder(served, out, **options)
        code = "" if computes(served.opened) else ", trust_remote_code=True"
        lines.append(f"Vectors: sentence_transformers.SentenceTransformer({str(out)!r}{code})")
        if classifies:
            lines.append(f"Labels: transformers.pipeline('text-classification', {str(out)!r})")
    figures = {"model": str(out), "adapted": adapted}
    console.show("\n".join(lines), figures if onnx else figures | {"classifies": classifies})


def check(folder: Path, trust_remote_code: bool, console: Console) -> bool:
    """Compare what an exported folder gives with what it stores; return whether it is the same."""
    reference = read_reference(folder.expanduser())
    lines, checks = [f"Version of the vectors: {reference.version or 'not adapted'}"], {}
    for name in reference.loaders:
        try:
            checks[name] = check_loader(folder.expanduser(), name, reference, trust_remote_code)
            outcome = [str(checks[name]), checks[name].wrong or "as exported"]
            lines.append(f"{name}: {', '.join(filter(None, outcome))}")
        except ImportError as error:
            lines.append(f"{name}: not compared, because {error}")
    right = bool(checks) and all(each.wrong is None for each in checks.values())
    found = {name: each._asdict() for name, each in checks.items()}
    figures = {"vectors_version": reference.version, "as_exported": right, "loaders": found}
    console.show("\n".join(lines), figures)
    return right


def merge(folder: Path, model: Path | None, out: Path, overwrite: bool, console: Console) -> None:
    """Merge an affine adapter into a checkpoint, and print how to load the result."""
    adapter, base_model = read_folder(folder)
    source = recorded_model(model, base_model)
    merge_into_checkpoint(adapter, source, out, overwrite=overwrite)
    own = take_apart(adapter).last_head() is not None
    head = "the checkpoint's, because the adapter has none; predictions may change"
    if own:
        head = "the adapter's, so that it predicts what the adapter predicts"
    console.show(
        f"Merged: {out}\nIts head is {head}.\nLoad it with transformers: "
        f"AutoModelForSequenceClassification.from_pretrained({str(out)!r})",
        {"model": str(out), "head": "adapter" if own else "checkpoint"},
    )
