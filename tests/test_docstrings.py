"""Docstrings of functions begin with an imperative verb, as in Optuna's and Ray's documentation."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LARGEST_SHARE = 0.1  # Optuna's and Ray's are 0.02 to 0.05
# Words that begin noun phrases as well ("Mean of", "Number of", "Trial that") are not in the list. Add verbs freely.
VERBS = """
Abort Accept Accumulate Acquire Add Adjust Advance Allocate Allow Anchor Answer Append Apply Archive Ask Assert Assign
Attach Audit Augment Back Begin Bind Block Bound Broadcast Build Cache Calculate Call Cancel Cast Catch Change Check
Choose Clear Clip Clone Close Collect Color Combine Commit Compare Compile Complete Compute Concatenate Configure
Connect Consolidate Consume Continue Convert Copy Correlate Count Create Cut Decide Declare Decode Decompose Define
Delay Delete Describe Destroy Detach Detect Determine Disable Discard Discretize Divide Do Download Draw Drop Embed
Emit Enable Encode End Enqueue Ensure Enter Escape Estimate Evaluate Exclude Execute Exit Expand Export Extend Extract
Fail Fetch Fill Filter Find Finish Fit Flatten Flush Follow Forget Format Forward Free Freeze Gather Generate Get Give
Group Guard Guess Handle Hash Hold Ignore Import Initialize Insert Install Integrate Interpolate Interrupt Iterate
Join Keep Kill Leave Let Limit Link List Load Locate Lock Log Look Lower Make Map Mark Mask Match Measure Merge
Migrate Mix Move Multiply Name Normalize Note Notify Offer Open Order Outline Pack Pad Parse Pass Pause Permute Pick
Plot Pop Postpone Predict Prefix Prepare Prevent Print Produce Project Promote Propose Protect Provide Prune Publish
Put Quantize Query Queue Quote Raise Read Rebuild Receive Record Recover Recycle Reduce Refine Refuse Register Reject
Release Reload Remember Remove Rename Render Renew Reopen Reorder Repair Repeat Replace Replay Report Request Require
Resample Rescale Reserve Reset Resize Resolve Restart Restore Restrict Resume Retry Return Reuse Rewrite Rotate Round
Run Sample Save Say Scale Scan Schedule Score Search Seed Select Send Separate Serve Set Shard Shorten Show Shuffle
Shut Sign Simulate Skip Sleep Slice Solve Sort Split Stack Start Stop Store Stream Strip Submit Subtract Suggest Sum
Summarize Suppress Switch Synchronize Take Tell Terminate Tokenize Track Train Transform Translate Trim Truncate Try
Turn Undo Unpack Unscale Update Upload Use Validate Verify View Wait Walk Warn Weigh Wrap Write Yield
"""
PACKAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for top in ("search", "trainables", "models")
    for path in (ROOT / top).iterdir()
    if (path.is_dir() and any(path.rglob("*.py"))) or (path.suffix == ".py" and path.stem != "__init__")
)


def openings_of(package: str) -> dict[str, list[str]]:
    """Return the first two words of each function's docstring, by file and line, without those of properties."""
    openings = {}
    for file in (ROOT / package).rglob("*.py") if (ROOT / package).is_dir() else [ROOT / package]:
        name = file.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                is_property = any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list)
                if (text := ast.get_docstring(node)) and not is_property:
                    openings[f"{name}:{node.lineno}"] = [word.rstrip(".,;:") for word in text.split()[:2]]
    return openings


def is_imperative(opening: list[str]) -> bool:
    return opening[0] in VERBS.split() and opening[1:] not in (["of"], ["is"], ["are"])


@pytest.mark.parametrize("package", [*PACKAGES, "benchmarks"])
def test_docstrings_of_functions_begin_with_a_verb(package):
    openings = openings_of(package)
    others = {place: " ".join(opening) for place, opening in openings.items() if not is_imperative(opening)}
    assert len(others) <= LARGEST_SHARE * len(openings), f"{len(others)} of {len(openings)}: {others}"


def test_examples_in_docstrings_are_correct():
    files = [file for package in PACKAGES for file in (ROOT / package, *(ROOT / package).rglob("*.py"))]
    examples = [file for file in files if file.suffix == ".py" and ">>> " in file.read_text(encoding="utf-8")]
    assert examples
    for file in examples:
        name = ".".join(("searchlight", *file.relative_to(ROOT).with_suffix("").parts))
        assert doctest.testmod(importlib.import_module(name)).failed == 0
