import pytest

from benchmarks._markdown import markdown_table, replace_section


def test_cells_are_aligned_and_escaped():
    expected = "| a | b |\n| --- | ---: |\n| x\\|y | 1 |"
    assert markdown_table(["a", "b"], [["x|y", "1"]]) == expected


@pytest.mark.parametrize(
    "content", ["", "<!-- one:begin -->", "<!-- one:end --><!-- one:begin -->"]
)
def test_broken_markers_leave_the_file_alone(tmp_path, content):
    path = tmp_path / "RESULTS.md"
    path.write_text(content, "utf-8")
    with pytest.raises(ValueError, match="once each"):
        replace_section(path, "one", "text")
    assert path.read_text("utf-8") == content
