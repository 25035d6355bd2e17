"""Changes of the files of a checkpoint."""

import json

from safetensors.torch import load_file, save_file


def edit(folder, file="config.json", **changes):
    """Change entries of a JSON object, which may not exist."""
    content = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(content | changes))
    return folder


def change_weights(folder, change, file="model.safetensors"):
    """Replace the weights of a checkpoint, a dict by name, by those that `change` returns."""
    weights = change(load_file(folder / file))
    save_file(weights, folder / file, metadata={"format": "pt"})
    return folder


def negate(*parts):
    """A change that negates the weights whose names contain one of some parts."""
    return lambda weights: {
        name: -values if any(part in name for part in parts) else values
        for name, values in weights.items()
    }
