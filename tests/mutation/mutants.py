"""Changes of the code that a test must notice: a seeded sample, each run against the tests that reach it.

    pytest -n auto --cov=perfsim --cov-context=test --cov-report=
    python tests/mutation/mutants.py --seed 1 --count 180 --page reports/mutations.md

A mutant differs from the source in one place: an operator, a comparison, a number, a term that is left out,
`min` for `max`, a condition negated. A process of its own imports the mutant in place of the module and runs
the tests that reach the changed line, of whatever room, until one fails. Messages and annotations are left
alone.
"""

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.abc
import importlib.machinery
import math
import os
import random
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple, TextIO

import hypothesis
import pytest
import yaml

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "perfsim").rglob("*.py"))
RECORDS = ROOT / "tests/records"
"""Wide answers, each within seconds."""
STEPS = ("strategies", "costs", "engine", "work", "network", "proof", "convergence")
ROOMS = (*STEPS, "base", "specs", "studies", "interop", "evidence", "report/table.py")
"""Rooms and files; each has an equal part of the sample."""
COMPILED = {
    f"perfsim/engine/{name}.py": [
        "tests/records/test_steps.py",
        "tests/properties/test_engine.py",
        "tests/properties/test_fairshare.py",
        "tests/unit/engine",
    ]
    for name in ("core", "rules")
}
"""Modules of which coverage sees little, since numba compiles them, and their tests."""
MOST_SECONDS = 180
"""A mutant in which a test, or collecting them, takes longer is found as well."""
MOST_TESTS = 150
"""Of those that reach a line; the nearest."""
MOST_BYTES = 6 * 2**30
HEADING = "# Which changes of the code the tests detect"
DIFFERENCE = """A mutant differs from the code in one place: an operator, a comparison, a number, a
term left out, `min` for `max`, a condition negated. The tests that reach it ran until one failed."""

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
PAIRS = (("min", "max"), ("minimum", "maximum"), ("floor", "ceil"), ("any", "all"), ("argmin", "argmax"))
SWAPPED = {name: other for pair in PAIRS for name, other in (pair, pair[::-1])}
UNTOUCHED = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)
ANNOTATIONS = ("annotation", "returns", "decorator_list", "type_params")


class Mutant(NamedTuple):
    """One change of one module."""

    path: str
    line: int
    change: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The package that it is in."""
        return Path(self.path).parts[1]

    @property
    def name(self) -> str:
        """Where it is and what it changes."""
        return f"{self.path}:{self.line}: {self.change}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    return [_mutant(path, source, number) for number in range(_count(source))]


def _count(source: str) -> int:
    return sum(1 for _ in _changes(ast.parse(source)))


def _mutant(path: str, source: str, number: int) -> Mutant:
    tree = ast.parse(source)
    node, field, new = next(change for index, change in enumerate(_changes(tree)) if index == number)
    before = _short(node)
    name, _, index = field.partition(" ")
    if index:
        getattr(node, name)[int(index)] = new
    else:
        setattr(node, name, new)
    line = min(inner.lineno for inner in ast.walk(node) if hasattr(inner, "lineno"))
    return Mutant(path, line, f"`{before}` becomes `{_short(node)}`", ast.fix_missing_locations(tree))


def _short(node: ast.AST) -> str:
    """The first line of a statement, or a whole expression."""
    return " ".join(ast.unparse(node).split("\n")[0].split())


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, str, Any]]:
    """(statement or expression, field, new value) of every mutant below a node, parents first."""
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # of `zip`: an assertion
    children: list[tuple[str, Any]] = []
    for field, value in ast.iter_fields(node):
        if field not in ANNOTATIONS:
            listed = isinstance(value, list)
            named = [(f"{field} {index}", child) for index, child in enumerate(value)] if listed else []
            children += named or [(field, value)]
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        yield node, "op", OPERATORS[type(node.op)]()
    for field, child in children:
        if isinstance(child, ast.expr):
            for new in _replacements(child):
                yield node, field, new
    for _, child in children:
        is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if isinstance(child, ast.AST) and not isinstance(child, UNTOUCHED) and not is_text:
            yield from _changes(child)


def _replacements(node: ast.expr) -> Iterator[ast.expr]:
    """What may stand in the place of an expression."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        yield node.left  # the second term is left out
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        changed = copy.deepcopy(node)
        changed.ops[0] = COMPARISONS[type(node.ops[0])]()
        yield changed
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(other, node.values)
    if isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        value = node.value
        other = value + 1 if isinstance(value, int) or not value else 2 * value
        yield ast.Constant(not value if isinstance(value, bool) else other)
    if isinstance(node, ast.Call):
        called = copy.deepcopy(node)
        function = called.func
        if isinstance(function, ast.Name) and function.id in SWAPPED:
            function.id = SWAPPED[function.id]
            yield called
        elif isinstance(function, ast.Attribute) and function.attr in SWAPPED:
            function.attr = SWAPPED[function.attr]
            yield called
        elif isinstance(function, ast.Name) and function.id == "range":
            called.args[-1] = ast.BinOp(called.args[-1], ast.Sub(), ast.Constant(1))
            yield called


def sample(seed: int, count: int, rooms: Sequence[str] = ROOMS) -> list[Mutant]:
    """The sample of a seed: equally many mutants of every room, from all of its modules."""
    drawn = []
    for room in rooms:
        places = []
        place = ROOT / "perfsim" / room
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            places += [(path, source, number) for number in range(_count(source))]
        wanted = max(1, round(count / len(rooms)))
        generator = random.Random(f"{seed} {room}")
        for path, source, number in generator.sample(places, min(wanted, len(places))):
            drawn.append(_mutant(str(path.relative_to(ROOT)), source, number))
    return drawn


@dataclass(frozen=True)
class Outcome:
    """How the tests took one mutant; `by` is the test that failed."""

    mutant: Mutant
    killed: bool
    by: str
    seconds: float


def mirrored(module: str) -> list[Path]:
    """The files of tests with a module's name in theirs."""
    path = Path(module)
    folder = ROOT / "tests/unit" / path.parts[1]
    return sorted(folder.rglob(f"test_{path.stem}.py")) + sorted(folder.rglob(f"test_*{path.stem}*.py"))


class Reach:
    """The tests that run each line, from the contexts of a coverage run (`pytest --cov-context=test`)."""

    def __init__(self, path: Path) -> None:
        coverage = importlib.import_module("coverage")
        self.data = coverage.CoverageData(str(path))
        self.data.read()

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Tests that run the line or the first one recorded above it; records first, then those near it.

        For a line that runs on import: the files that mirror the module, the records of answers, files that
        have the name that it sets, and tests that run a line with that name, anywhere.
        """
        if mutant.path in COMPILED:
            return COMPILED[mutant.path]
        lines = self._lines(mutant.path)
        line = max((line for line in lines if line <= mutant.line), default=0)
        contexts = set(lines.get(line, ())) - {""}
        files: list[str] = []
        if not contexts or not _in_function(mutant.tree, mutant.line):
            # A module may be imported by the first test that needs it, which is then the only one named here.
            contexts = self._users(mutant).union(*lines.values()) - {""}
            naming = _naming(_set_on_import(mutant.tree, mutant.line))
            paths = [*mirrored(mutant.path), RECORDS, *naming]
            files = list(dict.fromkeys(str(path.relative_to(ROOT)) for path in paths))
        tests = {_selected(context) for context in contexts}
        # Chromium does not start within the limit of memory that a mutant has.
        tests = {test for test in tests if not test.startswith("tests/browser") and _is_there(test)}
        stem = Path(mutant.path).stem
        room = f"tests/unit/{mutant.room}/"

        def rank(test: str) -> tuple[bool, bool, bool, str]:
            """Records first, since each finds much; then tests with the name of the module; of the room."""
            return not test.startswith("tests/records"), stem not in test, not test.startswith(room), test

        return [*files, *sorted(tests, key=rank)[:MOST_TESTS]]

    def _lines(self, path: str) -> dict[int, list[str]]:
        lines: dict[int, list[str]] = {}
        for name in self.data.measured_files():
            if name.endswith(f"/{path}"):  # data of several runs may have the file more than once
                for line, contexts in self.data.contexts_by_lineno(name).items():
                    lines.setdefault(line, []).extend(contexts)
        return lines

    def _users(self, mutant: Mutant) -> set[str]:
        """The contexts of all lines with the name of a constant or a field, or with a name set from it."""
        trees = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in SOURCES}
        names = {_set_on_import(mutant.tree, mutant.line)}
        contexts: set[str] = set()
        for _ in range(2):
            named = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
            names = set()
            for path, source in trees.items():
                if not named.search(source):
                    continue
                lines = self._lines(path)
                tree = ast.parse(source)
                for number, line in enumerate(source.splitlines(), 1):
                    if named.search(line):
                        reached = set(lines.get(number, ())) - {""}
                        contexts |= reached
                        names |= set() if reached else {_set_on_import(tree, number)}
            names.discard("")
            if not names:
                break
        return contexts


def _selected(context: str) -> str:
    """The test of a context `FILE::TEST[ROW]|PHASE`, with `@GROUP` before the phase under xdist.

    What is set up may be shared, so that it stands for all tests of its file.
    """
    test, _, phase = context.rpartition("|")
    return test.partition("::")[0] if phase == "setup" else re.sub(r"@\w+$", "", test)


def _is_there(test: str) -> bool:
    """Whether a test of an earlier coverage run is still there; pytest ends with an error at others."""
    path, _, name = test.partition("::")
    of_file = ROOT / path
    return of_file.exists() and f"def {name.partition('[')[0]}" in of_file.read_text(encoding="utf-8")


def _naming(name: str) -> list[Path]:
    """Files of tests that have the name of a constant or a field."""
    named = re.compile(rf"\b{re.escape(name)}\b")
    files = [
        path for folder in ("unit", "properties") for path in (ROOT / "tests" / folder).rglob("test_*.py")
    ]
    return [path for path in files if name and named.search(path.read_text(encoding="utf-8"))]


def _in_function(tree: ast.Module, line: int) -> bool:
    """Whether a line is in the body of a function."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return any(node.body[0].lineno <= line <= (node.end_lineno or 0) for node in functions)


def _set_on_import(tree: ast.Module, line: int) -> str:
    """The constant of the module, or the field of the class, whose statement a line is in; empty without."""
    statement = max((node for node in tree.body if node.lineno <= line), key=lambda node: node.lineno)
    if isinstance(statement, ast.ClassDef):
        inner = [node for node in statement.body if node.lineno <= line]
        statement = max(inner, key=lambda node: node.lineno, default=statement)
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return ""
    return ast.unparse(statement.targets[0] if isinstance(statement, ast.Assign) else statement.target)


class _Changed(importlib.abc.MetaPathFinder):
    """Imports one module from a changed tree."""

    def __init__(self, name: str, code: CodeType) -> None:
        self.name = name
        self.code = code

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader.get_code = lambda _: self.code
        return spec


class _Failures:
    """Keeps the first test that failed, and ends the process in a test that does not end."""

    name = ""

    def pytest_runtest_logstart(self) -> None:
        signal.alarm(MOST_SECONDS)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid or "collection"


def prepare() -> None:
    """Import what every mutant needs but perfsim itself, and set how hypothesis searches."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "HYPOTHESIS_PROFILE": "mutants"}
    needed = ("click", "networkx", "numpy", "plotly", "pydantic", "pytest", "scipy.optimize", "simpy", "yaml")
    for name in needed:
        importlib.import_module(name)
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # no time for the smallest example
    hypothesis.settings.register_profile(
        "mutants", deadline=None, derandomize=True, database=None, phases=phases
    )
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)


def _child(mutant: Mutant, tests: Sequence[str], report: int) -> int:
    """In a process of its own: import the mutant, run the tests until one fails."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    signal.alarm(MOST_SECONDS)
    if mutant.room == "engine":
        # numba would find the machine code of the file as it stands on disk, not of the mutant.
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    parts = Path(mutant.path).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    code = compile(mutant.tree, mutant.path, "exec", dont_inherit=True)
    sys.meta_path.insert(0, _Changed(name, code))
    failures = _Failures()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        os.dup2(nowhere.fileno(), 2)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "-W", "ignore"]
        result = pytest.main([*options, *tests], plugins=[failures])
    os.write(report, failures.name.encode())
    return int(result)


def run(mutant: Mutant, tests: Sequence[str]) -> tuple[int, str]:
    """Exit status of the tests (negative: the signal that ended them), and the test that failed."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        status = 3
        with contextlib.suppress(BaseException):
            status = _child(mutant, tests, write)
        os._exit(status)
    os.close(write)
    _, state = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what a test had started
    with os.fdopen(read) as answer:
        return os.waitstatus_to_exitcode(state), answer.read()


def try_mutants(
    drawn: Sequence[Mutant], reach: Reach, log: TextIO, until_s: float = math.inf
) -> list[Outcome]:
    """Run all of them, one after the other; with `until_s` (of `time.monotonic`) none begins after it."""
    outcomes = []
    for mutant in drawn:
        begin = time.monotonic()
        if begin > until_s:
            break
        status, by = run(mutant, reach.tests_of(mutant))
        by = by or ("no answer in time" if status == -signal.SIGALRM else "an error on import")
        outcome = Outcome(mutant, status != 0, by if status != 0 else "", time.monotonic() - begin)
        outcomes.append(outcome)
        verdict = f"killed by {outcome.by}" if outcome.killed else "SURVIVED"
        log.write(f"{outcome.seconds:5.1f} s {mutant.name}: {verdict}\n")
        log.flush()
    return outcomes


def explained() -> dict[str, str]:
    """Why a mutant changes no result, by its module and change."""
    known = yaml.safe_load((ROOT / "tests/mutation/explained.yaml").read_text(encoding="utf-8"))
    return {f"{path}: {change}": why for path, changes in known.items() for change, why in changes.items()}


def page(command: str, outcomes: Sequence[Outcome]) -> str:
    """The result in Markdown: share by room, and every survivor with its reason."""
    reasons = explained()
    killed = sum(outcome.killed for outcome in outcomes)
    survivors = [outcome.mutant for outcome in outcomes if not outcome.killed]
    why = {mutant.name: reasons.get(f"{mutant.path}: {mutant.change}", "") for mutant in survivors}
    equivalent = sum(bool(why[mutant.name]) for mutant in survivors)
    rows = [
        (room, [one for one in outcomes if one.mutant.path.startswith(f"perfsim/{room}")]) for room in ROOMS
    ]
    share = f"{killed} of {len(outcomes)} mutants are found by a test ({killed / len(outcomes):.1%})"
    rest = f"{equivalent} of the {len(survivors)} others change no result that anyone sees (explained)"
    lines = [
        f"{HEADING}\n\nMade by `{command}`, as `make mutations` does. {DIFFERENCE}\n",
        f"**{share};\n{rest}.**\n",
        "| room | mutants | found | share |\n| --- | ---: | ---: | ---: |",
    ]
    for room, of_room in rows:
        if of_room:
            count = sum(outcome.killed for outcome in of_room)
            lines.append(f"| {room} | {len(of_room)} | {count} | {count / len(of_room):.0%} |")
    lines += ["", "Those that no test finds:", ""]
    lines += [f"- {name}: {why[name] or '**no test finds it**'}" for name in sorted(why)] or ["None."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Draw a sample, try it, and write its part of the page below what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=180)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--seconds", type=float, help="begin no mutant after so many, in random order")
    parser.add_argument("--reach", type=Path, default=".coverage", help="the tests of each line")
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    target = asked.page and asked.page.resolve()
    reach = Reach(asked.reach.resolve())
    prepare()
    drawn = sample(asked.seed, asked.count, asked.rooms.split(","))
    until_s = math.inf
    if asked.seconds:
        random.Random(asked.seed).shuffle(drawn)
        until_s = time.monotonic() + asked.seconds
    outcomes = try_mutants(drawn, reach, sys.stdout, until_s)
    rooms = "" if asked.rooms == ",".join(ROOMS) else f" --rooms {asked.rooms}"
    command = f"python tests/mutation/mutants.py --seed {asked.seed} --count {len(outcomes)}{rooms}"
    text = page(command, outcomes)
    if target is None:
        sys.stdout.write(text)
        return
    before = target.read_text(encoding="utf-8").partition(HEADING)[0].rstrip() if target.exists() else ""
    target.write_text(f"{before}\n\n{text}".lstrip(), encoding="utf-8")


if __name__ == "__main__":
    main()
