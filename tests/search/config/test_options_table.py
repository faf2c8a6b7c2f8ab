from searchlight.search.config.options_table import FILE, format_options_page
from searchlight.search.config.search_config import OPTIONS


def test_page_of_options_has_a_row_for_each_option():
    assert FILE.read_text(encoding="utf-8") == format_options_page()
    rows = [line for line in format_options_page().splitlines() if line.startswith(("| `-", "|  |"))]
    assert len(rows) == len(OPTIONS)
    assert "| `--placement pack\\|spread` | `placement` |" in "\n".join(rows)
