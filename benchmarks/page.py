"""Write the generated parts of the pages in docs/ from the results of the benchmarks.

The text between `<!-- generated: NAME -->` and `<!-- end -->` is replaced; the rest of a page is written by hand.

    python benchmarks/page.py
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a clone need not be installed

from benchmarks.parts import (
    render_accumulation,
    render_baselines,
    render_confirmation,
    render_goals,
    render_gpu,
    render_importances,
    render_infeasible,
    render_last_run,
    render_liquid,
    render_quality,
    render_quality_peers,
    render_quality_problems,
    render_recorded_defaults,
    render_recorded_goals,
    render_recorded_noise,
    render_scaling,
    render_target,
    render_tracking_study,
    render_turnaround,
)
from benchmarks.recording import ROOT, NotMeasuredError, load_result
from benchmarks.tables import Render, render_table, show

DOCS = ROOT / "docs"
MARKED = re.compile(r"(<!-- generated: (\S+) -->\n).*?(?=<!-- end -->)", re.DOTALL)

# Long studies, which `make bench` does not repeat: their results, and how long they took on two cores, where recorded.
STUDIES = {
    "recorded_tables": "10 min beside other work",
    "recorded_choice": "32 min beside other work",
    "recorded_defaults": "200 CPU-minutes",
    "recorded_defaults_32": "230 CPU-minutes",
    "recorded_defaults_128": "20 min beside other work",
    "recorded_peers_128": "76 min beside other work",
    "recorded_smac": "20 CPU-minutes",
    "beliefs": "an hour on one CPU, beside other work",
    "scaling": "1 min",
    "lm_ladder": "45 min beside other work",
    "lm_ladder_small": "50 min beside other work",
    "recorded_warm_starts": "19 min beside other work",
    "search_quality": "an hour beside other work",
    "search_quality_former": "an hour",
    "search_quality_peers": "21 min",
    "search_quality_seconds": "7 min",
    "search_quality_stopping": "22 min beside other work",
    "search_variants": "many hours",
    "confirmation": "1 CPU-minute",
    "recorded_noise": "1 CPU-minute",
    "trained_searches": "17 min beside other work",
    "importances": "",
    "arc_policy": "20 CPU-minutes",
    "arc_programs": "25 CPU-minutes",
    "arc_dreams": "3 CPU-minutes",
    "arc_space": "5 CPU-minutes",
    "arc_searches": "22 min, most of it beside other work",
    "arc_depth": "8 CPU-minutes",
    "turnaround_lm": "6 min",
    "program_turnaround": "8 min",
    "continual": "10 CPU-minutes",
    "plasticity": "",
    "liquid_baselines": "13 CPU-minutes",
    "liquid_searches": "42 CPU-minutes beside other work",
    "scale_thousand": "15 min",
    "many_reports": "21 min beside other work",
    "steering": "4 min beside other work",
    "soak": "78 min beside other work",
    "check_durations": "25 min",
    "suggestions_samplers": "2 min",
}


def render_studies() -> list[str]:
    rows = []
    for name, takes in STUDIES.items():
        result = load_result(f"study/{name}")
        command = result.command.partition(", with ")[0]  # scripts of earlier commits have options of their own
        rows.append([f"`{name}.json`", f"`{command}`", result.date, takes])
    return render_table(["result", "command", "measured", "takes"], rows)


OUTPUTS = ("program_turnaround", "scale", "many_reports", "steering", "suggestions", "suggestions_samplers",
           "tracking_cost", "update_overhead", "reduction_cost", "study_stores", "preflight", "lm",
           "turnaround_lm")  # fmt: skip
QUOTED = ("arc_programs", "arc_depth", "liquid_speed_ncp", "continual", "plasticity", "soak", "lm_ladder",
          "lm_ladder_small")  # fmt: skip
MERGED = ("arc_policy", "arc_dreams", "arc_space", "arc_searches", "liquid_searches")
TEXTS = {"text-at-once": "all at once", "text-in-turn": "in turn", "text-command": "the third command"}
PARTS: dict[str, Render] = {
    "numbers": render_goals,
    "last-run": render_last_run,
    "turnaround": render_turnaround,
    "target": render_target,
    "quality": render_quality,
    "quality_peers": render_quality_peers,
    "quality_problems": render_quality_problems,
    "recorded_defaults": render_recorded_defaults("recorded_defaults"),
    "recorded_defaults_32": render_recorded_defaults("recorded_defaults_32"),
    "recorded_goals": render_recorded_goals,
    "accumulation": render_accumulation,
    "liquid": render_liquid,
    "studies": render_studies,
    "gpu": render_gpu,
    **{name: show(name, source=True) for name in OUTPUTS},
    **{name: show(name) for name in QUOTED},
    **{name: show(name, merged=True) for name in MERGED},
    **{f"study/{name}": show(f"study/{name}") for name in ("liquid_speed", "lm", "preflight", "scale")},
    "study/tracking_cost": render_tracking_study,
    "importances": render_importances,
    "infeasible": render_infeasible,
    "study/scaling": render_scaling,
    "confirmation": render_confirmation("problems", "noise", "noise", problem="mean"),
    "confirmation_recorded": render_recorded_noise,
    "confirmation_replays": render_confirmation("replays", "problem", "searched"),
    "liquid_text": render_baselines(
        "text", ("3-gram", "4-gram"), TEXTS | {"text-command, larger": "the third command, larger"}
    ),
    "liquid_series": render_baselines(
        "series", ("ar", "ar_dt"), {"series-at-once": "all at once", "series-in-turn": "in turn"}
    ),
}


def render_page(page: str) -> str:
    """Return `page` with the present contents of its generated parts."""

    def render(match: re.Match[str]) -> str:
        try:
            lines = PARTS[match[2]]()
        except NotMeasuredError:
            lines = ["Not measured yet."]
        return match[1] + "\n".join(lines) + "\n"

    return MARKED.sub(render, page)


def write_pages() -> None:
    """Write all pages that have generated parts."""
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        if MARKED.search(page):
            path.write_text(render_page(page), encoding="utf-8")


if __name__ == "__main__":
    write_pages()
