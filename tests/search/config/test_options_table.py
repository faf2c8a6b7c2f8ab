from search.config.options_table import FILE, format_options_page
from search.config.search_config import OPTIONS


def test_page_of_options_is_the_generated_one():
    assert FILE.read_text(encoding="utf-8") == format_options_page()


def test_page_has_a_row_for_each_option():
    rows = [line for line in format_options_page().splitlines() if line.startswith(("| `", "|  |"))]
    assert len(rows) == len(OPTIONS)
    assert "| `--mode min\\|max` | `mode` |" in "\n".join(rows)
