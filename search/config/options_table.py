"""Writes docs/options.md: python -m searchlight.search.config.options_table."""

import itertools
from pathlib import Path

from searchlight.search.config.search_config import OPTIONS
from searchlight.search.option import Option

FILE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
HEAD = """# Options of a search

Each option with a key is also a key of a YAML file for `--config FILE`, which the command line overrides. If the last
column has `--resume`, `searchlight resume` accepts the option and changes it for [the rest of the search](resume.md).
Rung and fidelity are [explained here](index.md#words).

## Options of a single call

These are no keys of a YAML file, because they belong to one call:

| command | option | meaning |
| --- | --- | --- |
| `searchlight run` | `--config FILE` | Read options from this YAML file. |
| `searchlight resume` | `NAME` | [Resume the search](resume.md) NAME, to finish it or to add trials. |
| `searchlight list` | `--storage PLACE` | List the searches in this folder or bucket. Default: runs. |
| `searchlight run` | `--dry-run` | Print the plan of the search as YAML, and start nothing. |
| `searchlight run` | `--preflight` | [Audit the task](preflight.md), print findings and the estimated cost. |
| `searchlight run` | `--json` | Print the result, the audit or the list of searches as JSON. |
| `searchlight run` | `NAME=VALUE` | Fix a parameter, as `--set` does. |
| `searchlight run` | `--try-first` | [Run the command](bring-your-code.md#a-script) once, and propose an objective. |
| `searchlight check` | `TASK`, `--device cuda` | [Check without a GPU](preflight.md#on-a-gpu) if TASK runs on one. |
| `searchlight best` | `NAME` | Print [the best config](results.md#the-parameters-of-the-best-config). |
| `searchlight best` | `--format FORMAT` | As yaml, as args of a command, or as a python dict. Default: yaml. |
| `searchlight best` | `--storage PLACE` | Folder or bucket of the searches. Default: runs. |
| `searchlight report` | `NAME` | Print the search NAME as a table, and write its result files again. |
| `searchlight report` | `--compare OTHER` | [Compare](results.md#comparing-searches) with another search. Repeatable. |
| `searchlight report` | `--replay` | Send [data that MLflow has missed](mlflow.md#when-the-server-is-unavailable). |
| `searchlight report` | `--log-model`, `--register MODEL` | Log or register [the best checkpoint](results.md). |
| `searchlight report` | `--storage PLACE` | Folder or bucket of the searches. Default: runs. |
| `searchlight init` | `FILE` | Write a task to begin from. Default: my_task.py. |
| `searchlight ui` | `NAME` | Show searches [in a browser](steering.md#a-live-page). |
| `searchlight mcp` | | Show them [to an agent](steering.md#for-agents). |

In a clone that is not installed, `python search/run.py` stands for `searchlight run`. It resumes with `--resume NAME`,
and lists with `--list`. `python search/report.py` stands for `searchlight report`.
"""


def format_options_page() -> str:
    """Return the text of docs/options.md."""
    lines = [HEAD]
    for group, options in itertools.groupby(OPTIONS, key=lambda option: option.group):
        lines += [f"## {group}\n", "| option | key | meaning | changeable |", "| --- | --- | --- | --- |"]
        lines += [*map(_format_row, options), ""]
    return "\n".join(lines)


def _format_row(option: Option) -> str:
    name = f"`{option.name} {option.metavar}".strip() + "`" if option.is_on_command_line else ""
    resumable = "`--resume`" if option.resumable else ""
    cells = (cell.replace("|", r"\|") for cell in (name, f"`{option.key}`", option.help, resumable))
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    FILE.write_text(format_options_page(), encoding="utf-8")
