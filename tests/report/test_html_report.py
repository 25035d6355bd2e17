"""The HTML report: the figures of the API, escaped, in one static file."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.datasets import make_classification

from isoadapt import Whitening
from isoadapt.metrics import isotropy_report
from isoadapt.model_selection import Comparison, compare_adapters
from isoadapt.report import AnisotropyProfile, EmbeddingMapDisplay, SpectrumDisplay, write_report
from tests.report.test_displays import COMPARISON, ROWS

X, Y = make_classification(160, 6, n_informative=4, random_state=0)
HOSTILE = "<script>alert('&')</script>\""


class Page:
    """Cells of the tables, paragraphs and tooltips of a page, which must be well-formed."""

    def __init__(self, file):
        self.text = file.read_text("utf-8")
        page = ElementTree.fromstring(self.text.removeprefix("<!DOCTYPE html>"))
        self.tags = [(element.tag, element.attrib) for element in page.iter()]
        forests = [table.iter("tr") for table in page.iter("table") if table.get("class")]
        self.forests = [[row for row in rows if row.get("class")] for rows in forests]
        self.paragraphs, self.tooltips = self.texts(page, "p"), self.texts(page, "title")
        self.rows = [self.texts(row, "td") for row in page.iter("tr")]

    def texts(self, element, tag):
        return ["".join(each.itertext()) for each in element.iter(tag)]


@pytest.fixture(scope="module")
def comparison():
    options = {"X_test": X[100:], "y_test": Y[100:], "encoder_saw": False}
    found = compare_adapters(X[:100], Y[:100], ["Whitening"], **options)
    changes = {"use": "index", "metric": "MRR@10"}
    index = [row | changes for row in found.rows if row["use"] == "classify"]
    index[0]["adapter"] = "second pass"
    return Comparison([*found.rows, *index], found.protocol, found.estimators, [HOSTILE])


@pytest.fixture(scope="module")
def report():
    return isotropy_report(X, labels=Y)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "report.html"


def test_all_figures_are_those_of_the_api(comparison, report, file):
    write_report(file, comparison=comparison, report=report, description="Model: m")
    page = Page(file)
    for line in [*comparison.verdict().splitlines(), comparison.protocol, "Model: m"]:
        assert line in page.paragraphs
    cells = {row[0]: row[1] for row in page.rows if len(row) == 5}
    assert cells["EV1"] == f"{report.ev1:.4g}"
    assert cells["effective rank / d"] == f"{report.effective_rank / 6:.4g}"
    for row in comparison.rows:
        start = [row["adapter"], f"{row['score']:.4f}"]
        start += [f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}]"]
        assert start in [shown[:3] for shown in page.rows]
        tooltip = f"{start[0]}: score {start[1]}, 95 % interval {start[2]}, difference"
        assert any(row.get("title").startswith(tooltip) for rows in page.forests for row in rows)
    assert "difference in MRR@10 from the teacher" in page.text
    assert "no adapter: index" not in page.text
    order = [comparison.protocol, " from no adapter<", "without an adapter</summary>"]
    assert sorted(order, key=page.text.index) == order  # what helps comes before the audit


def test_the_card_and_the_drawings_show_what_the_tests_do(file):
    write_report(file, comparison=COMPARISON, next_step="a < b")
    page = Page(file)
    said = "<b>Better</b>: accuracy 0.500 → 0.950, changes 1 of 9 predictions"
    assert page.text.index(said) < page.text.index("<pre>a &lt; b</pre>")
    assert len(page.forests) == 2
    found = ["better best", "better", "explained", "control", "adapter", "baseline", "worse"]
    lines = sorted(ROWS[: len(found)], key=lambda line: -line["score"])
    for rows in page.forests:
        assert [row.get("class") for row in rows] == found
        assert [row.find("th").text for row in rows] == [line["adapter"] for line in lines]
        styles = [re.findall(r"--\w+:([\d.]+)%", row.find("td").get("style")) for row in rows]
        zero = {float(style[0]) for style in styles}
        drawn = [[float(place) for place in style[1:]] for style in styles if len(style) == 4]
        names = ("difference_low", "difference_high", "difference")
        exact = [[line[name] for name in names] for line in lines if line["kind"] != "baseline"]
        scale = np.ptp(drawn) / np.ptp(exact)
        np.testing.assert_allclose(drawn - np.array([*zero]), scale * np.array(exact), atol=0.02)


def test_names_and_texts_are_escaped_and_texts_are_optional(comparison, file):
    rows = [row for row in comparison.rows if row["use"] == "classify"]
    rows = [{k: HOSTILE if v == "Whitening" else v for k, v in row.items()} for row in rows]
    hostile = Comparison(rows, HOSTILE, {}, [HOSTILE])
    few, classes = X[:20], np.array([HOSTILE, "b"])[Y[:20]]
    audit = isotropy_report(X, labels=np.array([HOSTILE, "b"])[Y])
    displays = {HOSTILE: EmbeddingMapDisplay.from_estimator(Whitening().fit(X), few, classes)}
    displays["spectra"] = SpectrumDisplay.from_embeddings({HOSTILE: X})
    texts = [f"{HOSTILE} {row}" for row in range(len(few))]
    given = {"comparison": hostile, "report": audit, "displays": displays}
    write_report(file, texts=texts, description=HOSTILE, **given)
    page = Page(file)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<script" not in page.text.lower()
    assert page.paragraphs.count(HOSTILE) == 3
    for row, name in enumerate(classes):
        assert page.tooltips.count(f"{name}: {texts[row]}") == 2  # before and after
    write_report(file, displays={"map": displays[HOSTILE]})
    page = Page(file)
    assert page.tooltips.count("b") == 2 * (classes == "b").sum()
    assert f"{HOSTILE} 7" not in page.tooltips


def test_characters_that_xml_cannot_have_are_replaced(file):
    name, shown = "a\x00\x1b\ufffe\ud800b", "a\ufffd\ufffd\ufffd\ufffdb"
    display = EmbeddingMapDisplay.from_estimator(Whitening().fit(X), X[:9], [name] * 5 + ["c"] * 4)
    write_report(file, displays={"map": display}, texts=[name] * 9, description=name)
    page = Page(file)
    assert page.paragraphs[0] == shown
    assert page.tooltips.count(f"{shown}: {shown}") == 2 * 5


def test_nothing_is_requested_and_ids_are_unique(report, file):
    log = [{"step": 1, "isoscore_star": 0.2}, {"step": 2, "isoscore_star": 0.3}]
    displays = {
        "profile": AnisotropyProfile(log).plot(),
        "map": EmbeddingMapDisplay.from_embeddings(X[:40], X[:40] + 1),
    }
    write_report(file, report=report, displays=displays)
    page = Page(file)
    assert not re.search(r"https?:|//|@import|src=", page.text.replace("</", "<"))
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    links = {own[name] for _, own in page.tags for name in ("href", "xlink:href") if name in own}
    links |= {f"#{name}" for name in re.findall(r"url\(#(.*?)\)", page.text)}
    ids = [f"#{own['id']}" for _, own in page.tags if "id" in own]
    assert links
    assert links <= set(ids)
    assert len(ids) == len(set(ids))
    assert "isoscore_star" in page.tooltips
    assert "prefers-color-scheme: dark" in page.text


def test_many_points_become_an_image(file):
    points = np.random.default_rng(0).normal(size=(20_000, 2))
    display = EmbeddingMapDisplay.from_embeddings(points, points * [1, 3])
    write_report(file, displays={"map": display})
    text = Page(file).text
    assert len(text) < 1_500_000
    assert "data:image/png;base64," in text
    assert not any(each.get_rasterized() for each in display.points_.values())


def test_another_number_of_texts_writes_nothing(file):
    display = EmbeddingMapDisplay.from_embeddings(X, X)
    with pytest.raises(ValueError, match="inconsistent numbers"):
        write_report(file, displays={"map": display}, texts=["a"])
    assert [*file.parent.iterdir()] == []
