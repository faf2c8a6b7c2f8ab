"""A timeline of each gang's work."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from plotly.graph_objects import Bar, Figure

from searchlight.search.analysis.timeline import Kind, RunningTime, Span, build_timeline, running_time
from searchlight.search.formatting import format_duration, format_percent, pluralize
from searchlight.search.reporting.html import theme
from searchlight.search.reporting.html.template import Section
from searchlight.search.study.record import SearchRecord

KINDS: dict[Kind, str] = {"training": theme.BLUE, "start-up": theme.ORANGE, "waiting": theme.GRAY}
MOST_BARS = 5000  # of all gangs, since each takes some 70 bytes of the page
MANY = 300  # bars above which borders are omitted
ROW, MOST = 26, 1000  # heights in pixels, of a gang and of all gangs


def build(record: SearchRecord) -> Section | None:
    """Return a Gantt chart of the gangs, or None without recorded segments."""
    spans = build_timeline(record.all_trials)
    if not spans:
        return None
    bars = list(_merge_short(spans))
    return Section("Where the time went", _summary_text(spans), [_build_chart(bars, running_time(record))])


def _summary_text(spans: Sequence[Span]) -> str:
    seconds: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        seconds[span.kind] += span.end - span.start
    together = sum(seconds.values())
    if not together:
        return ""
    shares = {kind: seconds[kind] / together for kind in KINDS}
    gangs = len({span.gang for span in spans})
    summary = f"{pluralize(gangs, 'gang')} trained in {format_percent(shares['training'])} "
    summary += f"of the {format_duration(together)} that "
    summary += "it held its workers" if gangs == 1 else "they held their workers, summed over gangs"
    started, waited = format_percent(shares["start-up"]), format_percent(shares["waiting"])
    return f"{summary}; {started} went into the start of workers and trials, {waited} into waiting."


def _merge_short(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the spans. If they are many, adjacent short ones of a gang become one."""
    if len(spans) <= MOST_BARS:
        yield from spans
        return
    shortest = 2 * sum(span.end - span.start for span in spans) / MOST_BARS
    for _, of_gang in groupby(spans, key=lambda span: span.gang):
        merged: list[Span] = []
        for span in of_gang:
            if merged and max(span.end - span.start, merged[-1].end - merged[0].start) >= shortest:
                yield _merge(merged)
                merged = []
            merged.append(span)
        yield _merge(merged)


def _merge(spans: Sequence[Span]) -> Span:
    """Return one span for adjacent ones, of the kind that takes most of their time."""
    kind = max(KINDS, key=lambda kind: sum(span.end - span.start for span in spans if span.kind == kind))
    trials = {span.trial for span in spans}
    return Span(spans[0].gang, trials.pop() if len(trials) == 1 else None, kind, spans[0].start, spans[-1].end)


def _build_chart(spans: Sequence[Span], clocked: RunningTime) -> Figure:
    """Return a row per gang, in the order of their start. It has a trace per kind, since thousands would be slow."""
    first: dict[str, float] = {}
    for span in sorted(spans, key=lambda span: span.start):
        first.setdefault(span.gang, span.start)
    rows = {gang: f"gang {number}" for number, gang in enumerate(first, start=1)}
    bars = [
        _build_bars(kind, spans_of_kind, rows, clocked)
        for kind in KINDS
        if (spans_of_kind := [span for span in spans if span.kind == kind])
    ]
    figure = theme.build_figure(
        *bars, x="time since the start", height=min(MOST, 110 + ROW * len(rows)), barmode="overlay"
    )
    figure.update_xaxes(theme.build_time_axis(clocked.total))
    figure.update_yaxes(categoryorder="array", categoryarray=list(rows.values()), autorange="reversed", type="category")
    return theme.mark_pauses(figure, clocked.pauses)


def _build_bars(kind: Kind, spans: Sequence[Span], rows: Mapping[str, str], clocked: RunningTime) -> Bar:
    trials = [f", trial {span.trial}" if span.trial is not None else "" for span in spans]
    lengths = [format_duration(span.end - span.start) for span in spans]
    return Bar(
        orientation="h",
        y=[rows[span.gang] for span in spans],
        base=[clocked.at(span.start) for span in spans],
        x=[clocked.at(span.end) - clocked.at(span.start) for span in spans],
        customdata=[f"{kind}{trial}, {length}" for trial, length in zip(trials, lengths, strict=True)],
        name=kind,
        marker={"color": KINDS[kind], "line": {"color": theme.CARD, "width": 1 if len(spans) < MANY else 0}},
        hovertemplate="%{y}: %{customdata}<extra></extra>",
    )
