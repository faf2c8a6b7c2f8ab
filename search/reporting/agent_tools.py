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

ANSWER_BYTES = 4096  # the largest answer, as JSON with the spaces that MCP writes
POINTS = 20  # in one proposal
CURVES = 10  # in one answer
BETTER = 10  # trials named that were better at a rung, of maybe thousands
LENGTHS = (200, 100, 50, 20)  # of texts in an answer that would be too large
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

    def list_searches(self, cursor: int = 0) -> dict[str, Any]:
        """Return the names of the searches, the newest first, and the `cursor` of those that are left out."""
        return _fill({}, "searches", [*reversed(list_searches(self.storage))], cursor)

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
        state = build_status(record, driver) | {"best_is_real": explain_search(record)["best"]}
        running = state.pop("unfinished")
        state = bound({**state, "unfinished": running[:10]}, ANSWER_BYTES * 3 // 4)
        state |= {"unfinished_in_all": len(running), "cursor": f"{len(ended)}-{len(record.commands)}"}
        state |= {"new": [], "new_in_all": len(news)}
        for each in reversed(news):  # the newest, as many as fit
            if _measure({**state, "new": [each, *state["new"]]}) > ANSWER_BYTES:
                break
            state["new"] = [each, *state["new"]]
        return state

    def get_trials(self, name: str, where: str = "", limit: int = 20, cursor: int = 0) -> dict[str, Any]:
        """Return trials that meet a condition, such as "val/loss<0.3 and epoch>3", the newest first.

        The `cursor` of the answer gives those that are left out in the next call, or is null.
        """
        rows = select_trials(self._load(name), where)[::-1]
        return _fill({"in_all": len(rows)}, "trials", rows, cursor, limit)

    def get_curve(self, name: str, trials: Sequence[int]) -> dict[str, Any]:
        """Return the reported values of at most 10 trials by epoch, of long ones every `step`-th and the last."""
        if len(trials) > CURVES:
            raise UsageError(f"trials must be at most {CURVES}, but got {len(trials)}.")
        known = {trial.number: trial for trial in self._load(name).trials}
        if unknown := [number for number in trials if number not in known]:
            raise UsageError(f"trials must be those of {name}, but there is no {', '.join(map(str, unknown))}.")
        step = 1
        while True:
            curves = {str(number): _thin(intermediate_values(known[number]), step) for number in trials}
            if _measure(answer := {"curves": curves, "step": step}) <= ANSWER_BYTES:
                return answer
            step *= 2

    def explain(self, name: str, trial: int | None = None) -> dict[str, Any]:
        """Return where trials fail and whether the best one is real; or why one trial was proposed and how it ended."""
        record = self._load(name)
        if trial is None:
            return explain_search(record)
        found = explain_trial(record, trial)
        return found | {"rungs": [{**rung, "better": rung["better"][:BETTER]} for rung in found["rungs"]]}

    def propose(self, name: str, points: Sequence[Mapping[str, Any]], why: str) -> dict[str, Any]:
        """Let a search try at most 20 points, such as {"lr": 0.001}. Other parameters have the task's defaults."""
        self._check_steers()
        if len(points) > POINTS:
            raise UsageError(f"points must be at most {POINTS} at once, but got {len(points)}.")
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
        avoid {"region": "lr>=0.1"}, believe {"point": {"lr": [0.001, 0.01]}}, narrow {"ranges": {"lr": "1e-4..1e-2"}},
        budget {"trials": 80}, pause, continue, finish, undo {"command": ID or number}. Points are for `propose`.
        """
        self._check_steers()
        if token:
            if token not in self._previews or self._previews[token][0] != name:
                raise UsageError("token must be that of a preview of this search, and is used once.")
            _, command = self._previews.pop(token)
            return self._send(name, command).as_json()
        if operation == "try":
            raise UsageError("operation must not be try: use propose.")
        revision = len(self._load(name).commands)
        command = Command(operation, args or {}, self.author, why, revision, gpu_hours=self.gpu_hours)
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


def _measure(answer: Mapping[str, Any]) -> int:
    """Return the length of an answer as MCP writes it, in bytes."""
    return len(json.dumps(answer, indent=2, ensure_ascii=False).encode())


def _fill(
    answer: dict[str, Any], name: str, rows: Sequence[Any], cursor: int, limit: int | None = None
) -> dict[str, Any]:
    """Return an answer with as many `rows` from `cursor` on as fit, at least one, and the cursor of the next one."""
    if cursor < 0:
        raise UsageError(f"cursor must be that of an earlier answer, but got {cursor}.")
    taken: list[Any] = []
    for row in rows[cursor:][:limit]:
        if taken and _measure({**answer, name: [*taken, row], "cursor": len(rows)}) > ANSWER_BYTES:
            break
        taken.append(row)
    end = cursor + len(taken)
    return {**answer, name: taken, "cursor": end if taken and end < len(rows) else None}


def _thin(curve: Mapping[int, float], step: int) -> dict[int, float]:
    """Return every `step`-th value of a curve, and the last one."""
    epochs = sorted(curve)
    return {epoch: curve[epoch] for epoch in sorted({*epochs[::step], *epochs[-1:]})}


def bound(answer: dict[str, Any], most: int = ANSWER_BYTES) -> dict[str, Any]:
    """Return an answer of at most `most` bytes. In a larger one, long texts and lists are cut, and end in "..."."""
    for length in LENGTHS:
        if _measure(answer) <= most:
            break
        answer = {name: _shorten(value, length) for name, value in answer.items()}
    return answer


def _shorten(value: Any, length: int) -> Any:
    """Return a value with texts of at most `length` characters, and a tenth as many items in each list."""
    if isinstance(value, str):
        return value if len(value) <= length else f"{value[: length - 3]}..."
    items = length // 10
    if isinstance(value, Mapping):
        cut = {name: _shorten(each, length) for name, each in [*value.items()][:items]}
        return cut if len(value) <= items else {**cut, "...": f"{len(value) - items} more"}
    if isinstance(value, Sequence):
        cut_list = [_shorten(each, length) for each in value[:items]]
        return cut_list if len(value) <= items else [*cut_list, f"... {len(value) - items} more"]
    return value


def _get_progress(trial: FrozenTrial) -> tuple[int, bool]:
    """Return how many segments of a trial have ended, and whether it has."""
    return len(get_segments(trial)), trial.state.is_finished()


def _find_event(before: tuple[int, bool], trial: FrozenTrial) -> str:
    segments, has_ended = _get_progress(trial)
    if has_ended and not before[1]:
        return "problem" if get_outcome_so_far(trial) in PROBLEMS else "end"
    return "rung" if segments > before[0] else ""
