"""Wrong versions of the library, each of which the tests must catch.

``python tests/mutations.py`` applies one mutation after the other to a copy of the tree, runs the
tests named with it and reports which were caught. ``python tests/mutations.py isobn ridge`` runs
those whose file contains one of these words. Each run is a new process that has imported what the
tests need of other packages, as many at a time as there are cores.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("isoadapt", "tests", "benchmarks", "examples", "tools")
FILES = ("pyproject.toml", "constraints.txt", "README.md", "CHANGELOG.md", "Makefile")
SECONDS = 300  # of one run of tests; a mutation that makes them hang counts as caught
PRELOADED = [
    "pytest",
    "hypothesis.extra.numpy",
    "torch",
    "transformers.trainer",
    "skorch",
    "pandas",
]
PRELOADED += ["sklearn.model_selection", "sklearn.cluster", "scipy.stats", "zuko.transforms"]
PRELOADED += ["sentence_transformers", "onnxscript", "onnxruntime", "matplotlib.pyplot"]


class Mutation(NamedTuple):
    """A change of one file of isoadapt, and the tests that must fail under it."""

    file: str  # below isoadapt/
    old: str  # occurs there exactly once
    new: str
    tests: str  # files below tests/, separated by blanks


STAR = "geometry/test_isoscore_star.py"
EXACT = "adapters/test_isotropy_layer.py adapters/test_selection.py"
SELECTION = "adapters/test_selection.py"
CLOSED = "adapters/test_closed_form.py"
ISTAR = "adapters/test_istar.py"

CHANGES = {  # of a file below isoadapt/, with the files below tests/ that must fail under each
    ("geometry/_isoscore.py", STAR): {
        "return (ratio - 1) / (d - 1)": "return ratio / d",
        "core = 4 * grad_square": "core = 2 * grad_square",
        "** 2, 2 * zeta * (1 - zeta)": "** 2, zeta * (1 - zeta)",
        "value * ratio**4": "value * ratio**2",
        "product.mul_(4)": "product",
    },
    ("geometry/_spread.py", "geometry/test_isoscore_bias.py"): {
        "n * n - 3 * n + 1": "n * n - 3 * n"
    },
    ("geometry/_spread.py", "losses/test_cosreg_loss.py"): {".sum(-1) - count": ".sum(-1)"},
    ("geometry/_moments.py", "geometry/test_moments.py"): {
        "self.count * other.count / total": "self.count * other.count / (total + 1)",
        "(shift @ (third + scatter_shift))": "(shift @ third)",
        "- 4 * (step @ third)": "",
    },
    ("encoders/_tokenization.py", "encoders/test_tokenization.py"): {
        "min(first, second, room // 2)": "min(first, second, (room + 1) // 2)"
    },
    ("geometry/_neighbours.py", "geometry/test_neighbours.py"): {
        "found.sort(dim=1).values": "found"
    },
    ("geometry/_neighbours.py", "geometry/test_dimension.py"): {
        "-ranks / len(nearest)": "-ranks / (len(nearest) + 1)"
    },
    ("geometry/_spread.py", "geometry/test_partition.py"): {"std(correction=0)": "std()"},
    ("geometry/_persistence.py", "geometry/test_persistence.py"): {
        "share * (size + 2)": "share * size"
    },
    ("losses/_joint.py", "losses/test_joint_loss.py"): {"/ (1 + self._step)": "/ 1"},
    ("losses/_spectrum_control.py", "losses/test_spectrum_control_loss.py"): {
        "max(Z.shape[-2], 1) ** 0.5": "max(Z.shape[-1], 1) ** 0.5"
    },
    ("losses/_persistent_entropy.py", "losses/test_persistent_entropy_loss.py"): {
        "+ n * member[:, None]": ""
    },
    ("adapters/_linalg.py", CLOSED): {
        "(count + 1) *": "count *",
        "** (-power / 2)": "** -power",
        "float(balance * (trace / total))": "float(balance)",
    },
    ("adapters/_isobn.py", "adapters/test_isobn.py"): {"(gamma * std + eps)": "(gamma + eps)"},
    ("adapters/_istar.py", ISTAR): {
        "(1 / zeta**2 - 1)": "/ zeta**2",
        "lerp(training_cov, zeta)": "lerp(training_cov, 1)",
    },
    ("adapters/_all_but_the_top.py", "adapters/test_all_but_the_top.py"): {
        "-matrix @ mean": "-mean"
    },
    ("adapters/_training/_exact.py", EXACT): {
        "2 * self.ridge * pulled": "self.ridge * pulled",
        "self.weight / (d - 1)": "self.weight / d",
    },
    ("adapters/_training/_problem.py", SELECTION): {
        '"i": 4': '"i": 1',
        "np.sqrt(2 * (agree": "0 * ((agree",
    },
    (
        "adapters/_training/_problem.py",
        "adapters/test_penalised.py adapters/test_isotropy_layer.py",
    ): {
        "shrunk = shrink(eigenvalues, oas_shrinkage(moments))": "shrunk = eigenvalues",
        "self.scale * (head.coef_ @ self.out)": "head.coef_ @ self.out",
    },
    ("adapters/_training/_epoch_choice.py", SELECTION): {
        ">= self.best - self.error": ">= self.best",
        ".number >= self.patience": ".number > self.patience",
    },
    ("adapters/_rows.py", "adapters/test_sample_weight.py"): {"(left > count)": "(left >= count)"},
    ("encoders/_identity.py", "encoders/test_cache.py"): {
        'len(part).to_bytes(8, "little") + part': "part"
    },
    ("encoders/_cache/_store.py", "encoders/test_store.py"): {
        'np.argsort(uses["tick"], kind="stable")': 'np.argsort(uses["tick"], kind="stable")[::-1]'
    },
    ("interop/_merge.py", "interop/test_merge.py"): {
        "[rows[label] for label in labels]": "list(rows.values())"
    },
}
MUTATIONS = [
    Mutation(file, old, new, tests)
    for (file, tests), changes in CHANGES.items()
    for old, new in changes.items()
]


def main(words: Sequence[str]) -> int:
    """Run the mutations of the files named by some words, all without any; 1 if one survives."""
    chosen = [m for m in MUTATIONS if not words or any(word in m.file for word in words)]
    check_texts(chosen)
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    os.environ.setdefault("ISOADAPT_SHARED", str(ROOT.parent / "shared"))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    survivors = 0
    with ProcessPoolExecutor(os.cpu_count(), context, max_tasks_per_child=1) as pool:
        names = sorted({name for mutation in chosen for name in mutation.tests.split()})
        unchanged = [Mutation("__init__.py", "", "", name) for name in names]
        failing = [
            m.tests for m, ok in zip(unchanged, pool.map(passes, unchanged), strict=True) if not ok
        ]
        if failing:
            sys.exit(f"without any mutation these fail or take too long: {', '.join(failing)}")
        for mutation, survives in zip(chosen, pool.map(passes, chosen), strict=True):
            survivors += survives
            word = "SURVIVED" if survives else "caught  "
            print(f"{word} {mutation.file}: {mutation.old!r} -> {mutation.new!r}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations are caught")
    return 1 if survivors else 0


def check_texts(mutations: Sequence[Mutation]) -> None:
    """Exit unless every mutation changes its file at exactly one place, and its tests exist."""
    problems = []
    for mutation in mutations:
        count = (ROOT / "isoadapt" / mutation.file).read_text().count(mutation.old)
        if count != 1:
            problems.append(f"{mutation.file}: {mutation.old!r} occurs {count} times, not once")
        missing = [name for name in mutation.tests.split() if not (ROOT / "tests" / name).exists()]
        problems += [f"{mutation.file}: there is no tests/{name}" for name in missing]
    if problems:
        sys.exit("\n".join(problems))


def passes(mutation: Mutation) -> bool:
    """Apply a mutation to a copy of the tree and run its tests there, up to the first failure."""
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve()
        copy_tree(tree)
        file = tree / "isoadapt" / mutation.file
        file.write_text(file.read_text().replace(mutation.old, mutation.new, 1))
        os.environ["PYTHONPATH"] = str(tree)  # of processes that the tests start
        sys.path.insert(0, str(tree))
        os.chdir(tree)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        import isoadapt

        if not Path(isoadapt.__file__).is_relative_to(tree):
            raise ImportError(f"the tests import {isoadapt.__file__} instead of the copy in {tree}")
        signal.alarm(SECONDS)  # raises KeyboardInterrupt, which ends the run
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
        code = pytest.main([*options, *(f"tests/{name}" for name in mutation.tests.split())])
        signal.alarm(0)
        os.chdir(ROOT)
    if code not in (0, 1, 2):  # neither passed, failed nor interrupted: not even collected
        raise RuntimeError(f"pytest ended with {code} for {mutation}")
    return code == 0


def copy_tree(target: Path) -> None:
    """Copy what the tests read."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copyfile(ROOT / name, target / name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
