"""Tables of Markdown from the results of benchmarks."""

from collections.abc import Callable, Sequence

from benchmarks.recording import Result, Row, load_result

Render = Callable[[], list[str]]


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: int = 0) -> list[str]:
    """Render a Markdown table, of which the last `numeric` columns are aligned to the right."""
    rule = ["---"] * (len(head) - numeric) + ["---:"] * numeric
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def render_source(result: Result) -> str:
    return f"`{result.command}`: {result.source}."


def format_value(value: object) -> str:
    """Format a figure as it is stored, with separators of thousands. None is an empty cell."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def format_column(values: Sequence[object]) -> list[str]:
    """Format the cells of a column, with as many decimals as the longest of its floats has."""
    cells = [format_value(value) for value in values]
    floats = [cell for cell, value in zip(cells, values, strict=True) if isinstance(value, float)]
    decimals = max((len(cell.partition(".")[2]) for cell in floats), default=0)
    if decimals > 4 or any("e" in cell for cell in floats):
        return cells
    return [f"{value:,.{decimals}f}" if isinstance(value, float) else format_value(value) for value in values]


def merge_intervals(row: Row) -> Row:
    """Return a row with each value, its NAME_low and its NAME_high in one cell."""
    merged = {}
    for name, value in row.items():
        if f"{name}_high" in row:
            values = [row[name + end] for end in ("", "_low", "_high")]
            cells = [f"{one:.{1 if max(map(abs, values)) >= 1 else 3}f}" for one in values]
            merged[name] = "{} ({} to {})".format(*cells)
        elif not (name.endswith(("_low", "_high")) and name.rpartition("_")[0] in row):
            merged[name] = value
    return merged


def render_figures(result: Result) -> list[str]:
    """Render all tables of a result, with the units of their columns."""

    def label(column: str) -> str:
        unit = result.units.get(column)
        return column.replace("_", " ") + (f", {unit}" if unit else "")

    lines: list[str] = []
    for name, table in result.figures.items():
        if isinstance(table, dict):
            rows = [[label(key), format_value(each)] for key, each in table.items()]
            lines += ["", *render_table([name.replace("_", " "), "value"], rows, 1)]
            continue
        columns = {column: [row.get(column) for row in table] for row in table for column in row}
        texts = {name for name, values in columns.items() if all(isinstance(each, str | None) for each in values)}
        names = sorted(columns, key=lambda name: name not in texts)
        cells = list(zip(*(format_column(columns[name]) for name in names), strict=True))
        lines += ["", *render_table([label(name) for name in names], cells, len(names) - len(texts))]
    return lines[1:]


def show(name: str, source: bool = False, merged: bool = False) -> Render:
    """Return the renderer of all tables of a result, or of the lines that a program printed.

    `merged` puts a value and its interval in one cell.
    """

    def render() -> list[str]:
        result = load_result(name)
        if merged:
            tables = {name: table for name, table in result.figures.items() if isinstance(table, list)}
            result.figures.update({name: list(map(merge_intervals, table)) for name, table in tables.items()})
        head = [render_source(result), ""] if source else []
        if result.printed:
            return [*head, "```", *result.printed, "```"]
        return [*head, *([f"{result.about}:", ""] if result.about else []), *render_figures(result)]

    return render
