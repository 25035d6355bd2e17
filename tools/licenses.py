"""Write LICENSES.md: the licence of every package that isoadapt and its extras install.

The packages are those of the environment that runs the script, found by following the requirements
of the repository's pyproject.toml. With ``--check`` nothing is written; the script then fails if a
package of the core has a copyleft licence, or if the file is not what it would write.
"""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "LICENSES.md"
CORE = "core"
STRONG = re.compile(r"GPL|General Public License|SSPL|EUPL|CC-BY-NC|CC-BY-SA")
WEAK = re.compile(r"MPL|Mozilla")
# Where the metadata say nothing: what the project's own pages state.
BY_HAND = {"gudhi": "MIT; modules that use CGAL are under GPL-3.0", "skops": "MIT License"}
HEAD = """# Licences of the dependencies

Written by `make licenses` from the metadata of the installed packages. isoadapt itself contains no
code of theirs. No package of the core has a licence of the GPL family. Packages under the Mozilla
Public License 2.0 are marked: their copyleft is limited to their own files and does not extend to
programs that import them.

isoadapt contains 3,000 definitions of WordNet 3.1, which come under the licence of WordNet:
`isoadapt/datasets/general_sentences.LICENSE`, also in the wheel and the sdist.

| package | licence | installed by |
|---|---|---|
"""


def main() -> None:
    """Write the file, or check it."""
    users = installed_by(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    licences = {name: licence(name) for name in users}
    strong = [name for name in users if CORE in users[name] and STRONG.search(licences[name])]
    if strong:
        sys.exit(f"packages of the core with a copyleft licence: {', '.join(strong)}")
    rows = []
    for name in sorted(users):
        mark = " (copyleft of files)" if WEAK.search(licences[name]) else ""
        mark = " (copyleft of parts)" if STRONG.search(licences[name]) else mark
        by = CORE if CORE in users[name] else ", ".join(sorted(users[name]))
        rows.append(f"| {name} | {licences[name]}{mark} | {by} |\n")
    text = HEAD + "".join(rows)
    if "--check" not in sys.argv:
        TARGET.write_text(text, encoding="utf-8")
    elif TARGET.read_text(encoding="utf-8") != text:
        sys.exit("LICENSES.md is out of date: run make licenses")


def installed_by(project: dict[str, Any]) -> dict[str, set[str]]:
    """Name the core and the extras that install each package, directly or through another."""
    groups = {CORE: project["dependencies"], **project["optional-dependencies"]}
    users: dict[str, set[str]] = {}
    for group, requirements in groups.items():
        pending = [Requirement(each) for each in requirements]
        while pending:
            requirement = pending.pop()
            name = canonicalize_name(requirement.name)
            if name == "isoadapt":
                pending += [Requirement(e) for x in requirement.extras for e in groups[x]]
            elif group not in users.setdefault(name, set()):
                users[name].add(group)
                pending += _requirements(name, requirement.extras)
    return users


def _requirements(name: str, extras: set[str]) -> list[Requirement]:
    """Return what a package requires here; nothing is known of one that is not installed."""
    try:
        found = map(Requirement, distribution(name).requires or [])
    except PackageNotFoundError:
        return []
    given = [{"extra": extra} for extra in ("", *extras)]
    return [each for each in found if each.marker is None or any(map(each.marker.evaluate, given))]


def licence(name: str) -> str:
    """Read the licence of a package from its metadata: expression, classifiers or text."""
    if name in BY_HAND:
        return BY_HAND[name]
    try:
        metadata = distribution(name).metadata
    except PackageNotFoundError:
        return "not installed here"
    if expression := metadata.get("License-Expression"):
        return expression
    prefix = "License :: "
    classifiers = [
        each.split(" :: ")[-1]
        for each in metadata.get_all("Classifier", [])
        if each.startswith(prefix) and each != "License :: OSI Approved"
    ]
    text = (metadata.get("License") or "").strip()
    if classifiers:
        return ", ".join(classifiers)
    return text.splitlines()[0].replace("|", "/") if text else "not stated"


if __name__ == "__main__":
    main()
