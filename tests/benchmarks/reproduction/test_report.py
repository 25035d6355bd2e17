"""The report's first page, gains, hours and pictures on made-up records, and the stored report."""

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.reproduction import (
    __main__ as reproduce,
    _report,
    isotropy_calibration,
    isotropy_layer,
    istar,
    istar_scores,
)
from benchmarks.reproduction._bases import PUBLISHED
from benchmarks.reproduction._cells import WHOLE
from benchmarks.reproduction._curves import PICTURES
from benchmarks.reproduction._gains import gains, gains_text
from benchmarks.reproduction._hours import block_hours
from benchmarks.reproduction._judging import judge_claims
from benchmarks.reproduction._output_embeddings import TASK as TINY
from benchmarks.reproduction._pictures import draw_pictures, picture_links
from benchmarks.reproduction._plan import plan
from benchmarks.reproduction._posthoc import TOP
from benchmarks.reproduction._tables import TASKS
from benchmarks.reproduction._verdicts import NOT_JUDGED, NOT_TESTABLE, SEEDS_NEEDED, WAITING

SLOTS = plan(WHOLE)
FINISHED = {"processor_seconds": 1800.0, "seconds": 3600.0, "versions": {}, "commit": "abc"}
NUMBERS = [
    *("anisotropy1", "anisotropy1_centered", "batch_anisotropy1_centered"),
    *("batch_anisotropy1_centered_start", "batch_anisotropy1_centered_end", "isoscore"),
    *("isoscore_star", "last_isoscore_star", "last_mean_norm", "last_two_nn"),
    *("ev1", "ev2", "ev3", "partition_isotropy", "partition_dispersion"),
]
METRIC = {  # what a condition adds to the metric of the base; in RTE it depends on the seed
    ("I-STAR lam=-1", "cola"): 0.1,
    ("I-STAR lam=-1", "mrpc"): -0.1,
    (isotropy_layer.MINIBATCH, "cola"): 0.1,
}


def figures(slot):
    """Figures of every kind, which depend on the condition, the task and the seed."""
    rng = np.random.default_rng([slot.seed, *slot.name.encode(), *slot.task.encode()])
    if slot.task == "gaussian":
        names = [*(f"zeta {zeta:g}" for zeta in istar_scores.ZETAS), istar_scores.CORRECTED]
        scores = {name: list(rng.uniform(0.1, 0.9, len(istar_scores.SIZES))) for name in names}
        return {"n": list(istar_scores.SIZES), **scores}
    if slot.task == TINY:
        return {"after": rng.uniform(0.4, 0.5), "after_without": 0.8}
    noise = 0.2 if slot.task == "rte" and slot.name != "base" else 0.001
    metric = PUBLISHED[slot.task].value + METRIC.get((slot.name, slot.task), 0.0)
    metric += noise * rng.normal()
    return {
        **{name: rng.uniform(0.1, 0.9) for name in NUMBERS},
        "metric": metric,
        "accuracy": metric,
        "matthews": metric,
        "cross_entropy": 0.5,
        "explained_variance": list(np.sort(rng.uniform(0.1, 1.0, TOP))),
        "layers_isoscore_star": list(rng.uniform(0.1, 0.9, 6)),
        "layers_two_nn": list(rng.uniform(5.0, 9.0, 6)),
    }


def made_up(n_seeds, slots=SLOTS):
    """A record for each slot of the plan, with figures for the first seeds."""
    return [
        {
            **slot.fields(),
            "key": f"{slot.kind}/{slot.name}/{slot.task}/{slot.seed}",
            **({"figures": figures(slot), **FINISHED} if slot.seed < n_seeds else {}),
        }
        for slot in slots
    ]


@pytest.fixture
def report(monkeypatch, tmp_path):
    """The text of the report on made-up records."""

    def write(n_seeds):
        found = SLOTS, [], made_up(n_seeds)
        monkeypatch.setattr(_report, "planned", lambda suite, folder: found)
        return _report.reproduction_text(reproduce.PAPERS, WHOLE, tmp_path)

    return write


def rows_of(text):
    """The cells of each table row."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def first_page(text):
    return text.split("## Does anything gain?")[0]


def first_page_rows(text):
    """The rows of the first page, by claim and task."""
    found, claim = {}, ""
    for cells in rows_of(first_page(text))[2:]:
        claim = cells[1] or claim
        found.update({(claim, task): cells for task in cells[2].split(", ")})
    return found


# --- verdicts --------------------------------------------------------------------------------


def test_the_first_page_has_the_verdicts_of_the_tables(report):
    text = report(5)
    tables = {cells[0]: cells[10] for cells in rows_of(text) if len(cells) == 12}
    page = first_page_rows(text)
    claims = [
        claim
        for papers in reproduce.PAPERS.values()
        for paper in papers
        for claim in paper.claims()
        if claim.headline and (claim.headline.words, TASKS[claim.task]) in page
    ]
    shown = {claim.claim: page[claim.headline.words, TASKS[claim.task]][6] for claim in claims}
    assert {claim: text.split(":")[0] for claim, text in shown.items()} == {
        claim.claim: tables[claim.claim] for claim in claims
    }
    assert len(page) == len(claims)
    assert {"**holds**", "**fails**", "not shown"} <= set(shown.values())


def test_the_two_papers_of_the_headline_questions_come_first(report):
    text = report(5)
    papers = [cells[0] for cells in rows_of(first_page(text))[2:] if cells[0]]
    assert [paper[:4] for paper in papers] == ["[002", "[003", "[000", "[004"]
    claims = list(dict.fromkeys(claim for claim, _ in first_page_rows(text)))
    assert claims[:2] == [each.words for each in (istar.GAINS, istar.LOWERS)]
    assert claims[2:6] == [each.words for each in isotropy_layer.HEADLINES.values()]


def test_the_papers_of_the_first_page_link_to_their_sections(report):
    text = report(5)
    titles = re.findall("^## (.*)$", text, re.MULTILINE)
    anchors = {re.sub("[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    links = re.findall(r"\| \[[0-9/]+\]\(#(.*?)\)", first_page(text))
    assert len(links) == len(set(links)) == len(reproduce.PAPERS)
    assert anchors.issuperset(links)


def test_what_has_no_figures_is_named_below_the_table(monkeypatch, tmp_path):
    records = made_up(5)
    for record in records:
        if record["task"] == "rte":
            record.pop("figures", None)
    monkeypatch.setattr(_report, "planned", lambda suite, folder: (SLOTS, [], records))
    text = _report.reproduction_text(reproduce.PAPERS, WHOLE, tmp_path)
    (listed,) = re.findall(r"Not run yet: (.*?)\.", first_page(text), re.DOTALL)
    listed = " ".join(listed.split())
    assert listed == f"002: RTE, SST-2, {istar.BEST_GAINS.words}; 003: RTE; 004: RTE, SST-2"
    rows = first_page_rows(text)
    assert (istar.GAINS.words, "MRPC") in rows
    assert (istar.GAINS.words, "RTE") not in rows


def test_power_stands_where_a_claim_is_not_shown(report):
    rows = first_page_rows(report(5))
    claims = (istar.GAINS.words, isotropy_layer.HEADLINES[isotropy_layer.OVER_BASE].words)
    shown = {cells[6]: cells[7] for (claim, _), cells in rows.items() if claim in claims}
    assert re.fullmatch(r"[01]\.\d\d", shown["not shown"])
    assert shown["**holds**"] == shown["**fails**"] == ""


def test_no_claim_is_judged_on_a_base_that_has_not_learned():
    records = made_up(5)
    for record in records:
        if record["name"] == "base":
            record["figures"].update(matthews=0.0, accuracy=0.5)
    judged = {
        claim.claim
        for papers in reproduce.PAPERS.values()
        for paper in papers
        for claim, line, _ in judge_claims(paper.claims(), records, WHOLE)
        if line.outcome not in (NOT_JUDGED, WAITING, NOT_TESTABLE)
    }
    untrained = [claim.claim for claim in istar_scores.claims()]
    assert judged - set(untrained) == {
        claim.claim for claim in isotropy_calibration.claims() if claim.where == "section 3"
    }
    assert judged.issuperset(untrained)


@pytest.mark.parametrize("n_seeds", range(SEEDS_NEEDED))
def test_fewer_than_three_seeds_never_give_a_verdict(report, n_seeds):
    text = report(n_seeds)
    for papers in reproduce.PAPERS.values():
        claims = [claim for paper in papers for claim in paper.claims()]
        lines = judge_claims(claims, made_up(n_seeds), WHOLE)
        assert {line.judged.outcome for line in lines} == {WAITING, NOT_TESTABLE}
    page = text.split("## How to read")[0].removeprefix(f"# Reproduction\n\n{_report.OPENING}")
    assert not re.search(r"\*\*|holds|fails|not shown|not after Holm|does not gain", page)
    seeds = rf"[0-{n_seeds}] of {SEEDS_NEEDED} seeds"
    reason = rf"(best: .*; )?{seeds}|0 of \d comparisons have 3 seeds"
    for cells in first_page_rows(text).values():
        assert re.fullmatch(f"waiting: ({reason})", cells[6])


def test_the_figures_of_a_single_seed_are_shown(report):
    base, down = (
        figures(next(slot for slot in SLOTS if (slot.name, slot.task) == (name, "cola")))["metric"]
        for name in ("base", "I-STAR lam=-1")
    )
    text = report(1)
    cells = first_page_rows(text)[istar.GAINS.words, "CoLA"]
    assert cells[4:6] == [f"{base:.4g} → {down:.4g}", ""]
    assert f"| I-STAR lam=-1 | base | {down - base:+.3g} (1 of 3 seeds) |" in text


# --- gains -----------------------------------------------------------------------------------


def test_a_gain_is_one_over_the_control_after_holm():
    found = gains(SLOTS, made_up(5), WHOLE)
    answer = gains_text(found).splitlines()[0]
    assert "I-STAR lam=-1 (CoLA)" in answer
    assert f"{isotropy_layer.MINIBATCH} (CoLA)" in answer
    assert "(MRPC)" not in answer
    controls = {gain.comparison.method: gain.comparison.control for gain in found}
    assert controls["I-STAR lam=-1"] == "base"
    assert controls[isotropy_layer.MINIBATCH] == isotropy_layer.NO_PENALTY


def test_nothing_gains_on_a_base_that_has_not_learned():
    records = made_up(5)
    for record in records:
        if record["name"] == "base" and record["task"] == "cola":
            record["figures"]["matthews"] = 0.1
    text = gains_text(gains(SLOTS, records, WHOLE))
    assert "(CoLA)" not in text.splitlines()[0]
    (line,) = [line for line in text.splitlines() if line.startswith("| I-STAR lam=-1 |")]
    assert line.split(" | ")[2] == "not judged"


# --- hours -----------------------------------------------------------------------------------


def test_what_is_left_is_estimated_from_the_finished_cells():
    slots = [slot for slot in SLOTS if slot.block == 1]
    found = block_hours(slots, made_up(2, slots), 1)
    n_left = sum(slot.seed >= 2 for slot in slots)
    assert (found.planned, found.finished) == (len(slots), len(slots) - n_left)
    assert found.processor == pytest.approx(0.5 * found.finished)
    assert found.clock == pytest.approx(1.0 * found.finished)
    assert found.left == pytest.approx(0.5 * n_left)
    assert block_hours(slots, made_up(0, slots), 1).left is None


# --- pictures --------------------------------------------------------------------------------


def test_pictures_are_drawn_alike_and_linked(tmp_path):
    records = made_up(3)
    for folder in ("first", "second"):
        draw_pictures(records, tmp_path / folder)
    files = sorted((tmp_path / "first").rglob("*.svg"))
    links = picture_links(records)
    assert set(links) == set(PICTURES)
    linked = {re.search(r"\]\((.*?)\)", link).group(1) for link in links.values()}
    assert linked == {str(file.relative_to(tmp_path / "first")) for file in files}
    for file in files:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
        assert file.read_bytes() == (tmp_path / "second" / "pictures" / file.name).read_bytes()


def test_a_picture_without_enough_records_is_neither_drawn_nor_linked(tmp_path):
    only_bases = [
        record if record["name"] in ("base", "no adapter") else {**record, "figures": {}}
        for record in made_up(3)
    ]
    for records in (made_up(0), only_bases):
        draw_pictures(records, tmp_path)
        assert list(tmp_path.iterdir()) == []
        assert picture_links(records) == {}


def test_a_curve_has_the_mean_of_the_seeds():
    records = made_up(3)
    _, change = PICTURES["002"].panels(records)
    (cola,) = [curve for curve in change.curves if curve.label == "CoLA"]
    assert list(cola.values) == [-1, 0, 1]
    assert cola.seeds == [0, 1, 2]
    steps = [cola.values[-1.0][seed] for seed in range(3)]
    assert cola.means()[0] == pytest.approx(np.mean(steps))
    assert steps == pytest.approx([0.1] * 3, abs=0.01)
    assert cola.means()[1] == 0.0


# --- the report in the repository ------------------------------------------------------------


STALE = "the report is stale: run `make reproduction-report`"


def n_lines_of(text):
    return int(re.search(r"from the first (\d+) lines of its records", text).group(1))


def test_the_report_follows_from_the_records_it_names(tmp_path):
    text = (reproduce._places.FOLDER / "REPRODUCTION.md").read_text("utf-8")
    records = (reproduce.RESULTS / "whole.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "whole.jsonl").write_bytes(b"".join(records[: n_lines_of(text)]))
    shutil.copy(reproduce.RESULTS / _report.EARLIER_FILE, tmp_path)
    assert _report.reproduction_text(reproduce.PAPERS, WHOLE, tmp_path) == text, STALE
    linked = re.findall(r"\]\((pictures/.*?)\)", text)
    assert all((reproduce._places.FOLDER / link).exists() for link in linked), STALE


def test_the_report_has_all_committed_records():
    root = reproduce._places.ROOT
    file = (reproduce.RESULTS / "whole.jsonl").relative_to(root)
    git = ["git", "-C", str(root), "show", f"HEAD:{Path(file).as_posix()}"]
    committed = subprocess.run(git, capture_output=True, check=False)
    if committed.returncode:
        pytest.skip("not in a git checkout")
    text = (reproduce._places.FOLDER / "REPRODUCTION.md").read_text("utf-8")
    assert n_lines_of(text) >= committed.stdout.count(b"\n"), STALE
