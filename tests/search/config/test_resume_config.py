import pytest

from searchlight.search.config import load_config
from searchlight.search.config.loading import ALL_CHECKPOINTS, build_resume_config
from searchlight.search.errors import UsageError


@pytest.fixture
def place(tmp_path):
    return tmp_path / "runs" / "one"


@pytest.fixture
def stored(place):
    """What the study of a search has, written by a version that still had the option --memory-growth."""
    config = load_config({"task": "arc", "name": "one", "storage": str(place.parent), "workers": "2"})
    return {"config": {**config.model_dump(mode="json", by_alias=True), "memory_growth": 2.0}}


def test_search_with_a_retired_option_resumes(stored, place):
    config = build_resume_config(stored, place, {"trials": "40"})
    assert (config.name, config.workers, config.trials) == ("one", 2, 40)


def test_search_that_kept_all_checkpoints_keeps_them(stored, place):
    assert build_resume_config(stored, place, {}).keep_checkpoints == 10
    assert build_resume_config(stored, place, {"keep_checkpoints": "3"}).keep_checkpoints == 3
    del stored["config"]["keep_checkpoints"]  # written by a version without the option
    assert build_resume_config(stored, place, {"trials": "40"}).keep_checkpoints == ALL_CHECKPOINTS > 40


def test_resume_refuses_options_that_change_the_trials(stored, place):
    with pytest.raises(UsageError) as caught:
        build_resume_config(stored, place, {"task": "liquid", "seed": "1", "search": {"lr": "1..2"}})
    assert str(caught.value) == (
        "--resume must come without --search, --seed, a task: one continues as it began. Options that may change: "
        "--concurrency, --confirm, --cpus-per-worker, --gpu-hours, --gpus-per-worker, --keep-checkpoints, "
        "--max-failures, --no-preflight, --patience, --placement, --quiet, "
        "--recycle-after, --register, --resource, --sampler, --stall-timeout, --stop-grace, --stop-when, --study, "
        "--time-budget, --trials, --workers."
    )
