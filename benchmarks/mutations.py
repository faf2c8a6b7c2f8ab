"""Measure the share of small errors in the product that the tests find.

A mutant is the product with one change: another comparison, operator or constant, or a statement less. It is killed if
a test of its package fails, or if the tests do not end. Some mutants behave as the product does and cannot be killed.
So compare only shares of the same mutants, such as those of two versions of the tests.

    python benchmarks/mutations.py [--mutants 20] [--packages update,schedulers,study,storage] [--project FOLDER]
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "update": ("trainables/update", ["tests/trainables/update"]),
    "schedulers": ("search/schedulers", ["tests/search/schedulers", "tests/search/execution"]),
    "study": (
        "search/study",
        [f"tests/search/{name}" for name in ("study", "storage", "execution", "samplers", "analysis")],
    ),
    "storage": ("search/storage", ["tests/search/storage"]),
    "folder": ("search/folder", ["tests/search/folder", "tests/search/storage"]),
}
EXCHANGED = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
}
COPIED = ("search", "trainables", "models", "tests", "deploy", "pyproject.toml", "requirements.lock")
UNMARKED = ("-o", "markers=slow", "-m", "not slow")  # versions before that marker run all of their tests
LONGEST = 5  # time limit, as a multiple of the time without a mutant


class Mutator(ast.NodeTransformer):
    """Changes node number `target` of those that can be changed. None: it only counts them."""

    def __init__(self, target: int | None = None) -> None:
        self.target, self.count, self.change = target, 0, ""

    def visit(self, node: ast.AST) -> ast.AST:
        mutated = self._mutate(node)
        if mutated is not None:
            if self.count == self.target:
                line, before = getattr(node, "lineno", 0), ast.unparse(node).splitlines()[0]
                self.change = f"line {line}: {before} -> {ast.unparse(mutated).splitlines()[0]}"
                self.count += 1
                return ast.copy_location(mutated, node)
            self.count += 1
        return self.generic_visit(node)

    def _mutate(self, node: ast.AST) -> ast.AST | None:
        """Return the changed node, or None where nothing is to change."""
        match node:
            case ast.Compare(ops=[op]) if type(op) in EXCHANGED:
                return ast.Compare(node.left, [EXCHANGED[type(op)]()], node.comparators)
            case ast.BinOp(op=op) if type(op) in EXCHANGED:
                return ast.BinOp(node.left, EXCHANGED[type(op)](), node.right)
            case ast.BoolOp(op=op):
                return ast.BoolOp(EXCHANGED[type(op)](), node.values)
            case ast.UnaryOp(op=ast.Not()):
                return node.operand
            case ast.Constant(value=bool()):
                return ast.Constant(not node.value)
            case ast.Constant(value=int()):
                return ast.Constant(node.value + 1)
            case ast.Expr(value=ast.Call()) | ast.AugAssign():
                return ast.Pass()
        return None


def draw_mutants(folder: Path, count: int, draw: random.Random) -> list[tuple[Path, int]]:
    """Return files below `folder`, each with the number of a change in it."""
    mutants = []
    for path in sorted(folder.rglob("*.py")):
        counter = Mutator()
        counter.visit(ast.parse(path.read_text()))
        mutants += [(path, number) for number in range(counter.count)]
    return draw.sample(mutants, min(count, len(mutants)))


def copy_project(project: Path) -> Path:
    copy = Path(tempfile.mkdtemp(prefix="mutants-"))
    for name in COPIED:
        source = project / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    return copy


def passes(project: Path, tests: list[str], longest_s: float | None = None) -> bool:
    """Return whether all quick tests pass within `longest_s`."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *UNMARKED, *tests]
    env = {**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command,
        cwd=project,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=longest_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return False
    if process.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest must run tests, but ended with {process.returncode}:\n{out[-3000:]}")
    return process.returncode == 0


def measure(name: str, project: Path, mutants: int, seed: int, processes: int) -> tuple[int, int]:
    """Print the mutants of a package that survive. Return the number of killed ones and the number of all."""
    folder, tests = PACKAGES[name]
    copies: SimpleQueue[Path] = SimpleQueue()
    for _ in range(processes):
        copies.put(copy_project(project))
    start = time.monotonic()
    first = copies.get()
    if not passes(first, tests):
        raise RuntimeError(f"{' '.join(tests)} must pass without a mutant, but fail")
    copies.put(first)
    longest_s = 30 + LONGEST * (time.monotonic() - start)

    def survives(mutant: tuple[Path, int]) -> str:
        path, number = mutant[0].relative_to(project), mutant[1]
        copy = copies.get()
        source = (copy / path).read_text()
        mutator = Mutator(number)
        (copy / path).write_text(ast.unparse(mutator.visit(ast.parse(source))))
        try:
            return f"{path} {mutator.change}" if passes(copy, tests, longest_s) else ""
        finally:
            (copy / path).write_text(source)
            copies.put(copy)

    drawn = draw_mutants(project / folder, mutants, random.Random(seed))
    with ThreadPoolExecutor(processes) as pool:
        survivors = list(filter(None, pool.map(survives, drawn)))
    for _ in range(processes):
        shutil.rmtree(copies.get())
    print(f"{name}: {len(drawn) - len(survivors)} of {len(drawn)} mutants killed", flush=True)
    print(*(f"  survives: {change}" for change in survivors), sep="\n", flush=True)
    return len(drawn) - len(survivors), len(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=20, help="of each package")
    parser.add_argument("--packages", default=",".join(PACKAGES), help="whose mutants to test")
    parser.add_argument("--project", type=Path, default=ROOT, help="the folder of the product and of the tests")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn")
    parser.add_argument("--processes", type=int, default=2, help="at a time")
    given = parser.parse_args()
    project = given.project.resolve()
    names = given.packages.split(",")
    results = [measure(name, project, given.mutants, given.seed, given.processes) for name in names]
    killed, drawn = (sum(column) for column in zip(*results, strict=True))
    print(f"together: {killed} of {drawn} mutants killed, {killed / drawn:.0%}")


if __name__ == "__main__":
    main()
