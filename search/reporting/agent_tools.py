"""What an agent may see of searches and do with them. It is the content of the MCP server, without MCP."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import list_searches
from searchlight.search.reporting.explanation import explain_search, explain_trial
from searchlight.search.reporting.running_search import RunningSearch
from searchlight.search.reporting.status import build_status, get_outcome_so_far, is_running, select_trials
from searchlight.search.steering.command import Command, LogEntry
from searchlight.search.steering.state import build_state
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import get_segments, intermediate_values
from searchlight.trainables.filesystem.paths import StoragePath

STATE_BYTES = 4096  # the largest state, which an agent reads often
BETTER = 10  # trials named that were better at a rung, of maybe thousands
POLL_S = 2.0
LONGEST_WAIT_S = 600.0
PROBLEMS = ("diverged", "infeasible", "failed")


@dataclass
class AgentTools:
    """The tools of an agent. While a search runs, its confirming runs are hidden, so that no agent can select by them.

    Attributes:
        storage: The folder or bucket of the searches.
        steers: Whether the agent may change searches.
        author: The name of the agent in the log.
        share: The largest share of a search's trials that it may propose.
        gpu_hours: The largest GPU time of these trials, or None. The driver stops them then.
    """

    storage: StoragePath
    steers: bool = False
    author: str = "agent"
    share: float = 0.3
    gpu_hours: float | None = None
    _previews: dict[str, tuple[str, Command]] = field(default_factory=dict, init=False)

    def list_searches(self) -> dict[str, Any]:
        """Return the names of the searches, the oldest first."""
        return {"searches": list_searches(self.storage)}

    def get_state(self, name: str, cursor: str = "") -> dict[str, Any]:
        """Return the state of a search in at most 4 kB, with what is new since the `cursor` of an earlier call."""
        record = self._load(name)
        moments = sorted((t.datetime_complete, t.number, t) for t in record.trials if t.datetime_complete)
        ended = [trial for _, _, trial in moments]
        try:
            seen, known = map(int, cursor.split("-")) if cursor else (0, 0)
        except ValueError as error:
            raise UsageError(f"cursor must be that of an earlier state, such as 3-1, but got {cursor!r}.") from error
        news = [
            {"trial": t.number, "outcome": get_outcome_so_far(t), "reason": t.user_attrs.get("reason", "")[:200]}
            for t in ended[seen:]
        ]
        news += [
            {"command": e.command.operation, "by": e.command.author, "effect": e.answer.effect[:200]}
            for e in record.commands[known:]
        ]
        driver = RunningSearch(self.storage / name).load_driver()
        status, explained = build_status(record, driver), explain_search(record)
        state = {**status, "best_is_real": explained["best"], "cursor": f"{len(ended)}-{len(record.commands)}"}
        for part in ("diverged", "infeasible"):
            state[part] = [line[:200] for line in explained[part][:3]]
        running = state.pop("unfinished")
        state |= {"unfinished": running[:10], "unfinished_in_all": len(running), "new": [], "new_in_all": len(news)}
        for each in reversed(news):  # the newest, as many as fit
            if len(json.dumps({**state, "new": [each, *state["new"]]}, indent=2)) > STATE_BYTES:  # as MCP writes it
                break
            state["new"] = [each, *state["new"]]
        return state

    def get_trials(self, name: str, where: str = "", limit: int = 20) -> dict[str, Any]:
        """Return the newest trials that meet a condition, such as "val/loss<0.3 and epoch>3"."""
        rows = select_trials(self._load(name), where)
        return {"trials": rows[-limit:] if limit > 0 else [], "in_all": len(rows)}

    def get_curve(self, name: str, trials: Sequence[int]) -> dict[str, Any]:
        """Return the reported values of trials by epoch."""
        known = {trial.number: trial for trial in self._load(name).trials}
        if unknown := [number for number in trials if number not in known]:
            raise UsageError(f"trials must be those of {name}, but there is no {', '.join(map(str, unknown))}.")
        return {"curves": {str(number): dict(intermediate_values(known[number])) for number in trials}}

    def explain(self, name: str, trial: int | None = None) -> dict[str, Any]:
        """Return where trials fail and whether the best one is real; or why one trial was proposed and how it ended."""
        record = self._load(name)
        if trial is None:
            return explain_search(record)
        found = explain_trial(record, trial)
        return found | {"rungs": [{**rung, "better": rung["better"][:BETTER]} for rung in found["rungs"]]}

    def propose(self, name: str, points: Sequence[Mapping[str, Any]], why: str) -> dict[str, Any]:
        """Let a search try points, such as {"lr": 0.001}. Other parameters have the task's defaults."""
        self._check_steers()
        answers, most = [], self._count_share(self._load(name))
        for point in points:
            args = {"point": dict(point), "full": False}
            command = Command("try", args, self.author, why, most=most, gpu_hours=self.gpu_hours)
            answer = self._send(name, command).answer
            answers.append({"accepted": answer.accepted, "effect": answer.effect})
        return {"answers": answers}

    def steer(
        self, name: str, operation: str = "", args: Mapping[str, Any] | None = None, why: str = "", token: str = ""
    ) -> dict[str, Any]:
        """Preview a command, and commit it in a second call with the token of the preview alone.

        Operations and their args: stop and keep {"trials": [3]}, extend {"trials": [3], "epochs": 2},
        avoid {"region": "lr>=0.1"}, narrow {"ranges": {"lr": "1e-4..1e-2"}}, budget {"trials": 80}, pause, continue,
        finish, undo {"command": ID}. Points are proposed with `propose`.
        """
        self._check_steers()
        if token:
            if token not in self._previews or self._previews[token][0] != name:
                raise UsageError("token must be that of a preview of this search, and is used once.")
            _, command = self._previews.pop(token)
            return self._send(name, command).as_json()
        if operation == "try":
            raise UsageError("operation must not be try: use propose.")
        command = Command(operation, args or {}, self.author, why, len(self._load(name).commands))
        entry = self._send(name, replace(command, is_preview=True))
        if not entry.answer.accepted:
            raise UsageError(entry.answer.effect)
        token = secrets.token_hex(8)
        self._previews[token] = name, command
        return {"effect": entry.answer.effect, "warnings": [*entry.answer.warnings], "token": token}

    def wait(self, name: str, until: str = "any", timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until a trial reaches a rung, ends, fails ("problem"), or any of them, or until the search ends.

        Returns:
            What happened, which is empty after `timeout_s`, and whether the search runs.
        """
        if until not in ("rung", "end", "problem", "any"):
            raise UsageError(f"until must be rung, end, problem or any, but got {until!r}.")
        deadline = time.monotonic() + min(timeout_s, LONGEST_WAIT_S)
        before = {trial.number: _get_progress(trial) for trial in self._load(name).trials}
        while True:
            record = self._load(name)
            happened = [
                {"trial": trial.number, "event": event, "outcome": get_outcome_so_far(trial)}
                for trial in record.trials
                if (event := _find_event(before.get(trial.number, (0, False)), trial))
            ]
            found = [each for each in happened if until in ("any", each["event"]) or each["event"] == "problem"]
            if found or not is_running(record) or time.monotonic() >= deadline:
                return {"happened": found[:20], "running": is_running(record)}
            time.sleep(POLL_S)

    def _load(self, name: str) -> SearchRecord:
        if name not in list_searches(self.storage):
            raise UsageError(f"name must be one of list_searches, but got {name!r}.")
        record = RunningSearch(self.storage / name).load()
        return replace(record, confirming_runs=()) if is_running(record) else record

    def _send(self, name: str, command: Command) -> LogEntry:
        entry = RunningSearch(self.storage / name).send(command)
        if entry is None:
            raise UsageError(
                f"{name} must answer, but its driver does not: it may have been killed. The command {command.id} waits "
                "for the next driver: do not send it again."
            )
        return entry

    def _check_steers(self) -> None:
        if not self.steers:
            raise UsageError("the server must be started with --allow-steering to change a search, but was not.")

    def _count_share(self, record: SearchRecord) -> int:
        """Return how many points the agent may try. A budget of its own does not change that."""
        others = build_state([entry for entry in record.commands if entry.command.author != self.author])
        planned = others.get_limit("trials") or record.about.get("config", {}).get("trials", 0)
        return int(self.share * planned + 1e-9)  # 0.29 * 100 is 28.999...


def _get_progress(trial: FrozenTrial) -> tuple[int, bool]:
    """Return how many segments of a trial have ended, and whether it has."""
    return len(get_segments(trial)), trial.state.is_finished()


def _find_event(before: tuple[int, bool], trial: FrozenTrial) -> str:
    segments, has_ended = _get_progress(trial)
    if has_ended and not before[1]:
        return "problem" if get_outcome_so_far(trial) in PROBLEMS else "end"
    return "rung" if segments > before[0] else ""
