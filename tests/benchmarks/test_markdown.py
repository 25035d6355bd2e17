import pytest

from benchmarks._markdown import replace_section


def test_sections_are_replaced_alone(tmp_path):
    path = tmp_path / "RESULTS.md"
    replace_section(path, "one", "first")
    replace_section(path, "two", "second")
    before = path.read_text("utf-8")
    replace_section(path, "one", "changed\nfor good")
    after = path.read_text("utf-8")
    assert after == before.replace("first", "changed\nfor good")
    replace_section(path, "one", "first")
    assert path.read_text("utf-8") == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content", ["<!-- one:begin -->", "<!-- one:end --><!-- one:begin -->", "<!-- one:end -->"]
)
def test_broken_markers_leave_the_file_alone(tmp_path, content):
    path = tmp_path / "RESULTS.md"
    path.write_text(content, "utf-8")
    with pytest.raises(ValueError, match="once each"):
        replace_section(path, "one", "text")
    assert path.read_text("utf-8") == content
