"""Writes `docs/reference/`: commands, Python functions, keys of files and of JSON, from the program itself.

python docs/reference.py
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from json_keys import told
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import perfsim as ps
from perfsim.api.tools import schema_of
from perfsim.cli import main
from perfsim.interop import READ, tool_named
from perfsim.prediction.risk import DEGREES, MOST, RULE, published_kinds
from perfsim.specs.calibration import Calibration
from perfsim.specs.layout import written
from perfsim.specs.trainers import TRAINERS

FOLDER = Path(__file__).parent / "reference"
FILES = ("study", "sweep", "model", "recipe", "system", "device", "link", "cases", "measured")
UNITS = {
    "_s": "seconds",
    "_bytes": "bytes",
    "_flop": "FLOP",
    "_per_s": "a second",
    "_bytes_per_s": "bytes a second",
    "_flop_per_s": "FLOP a second",
    "_w": "watts",
    "_j": "joules",
    "_usd": "USD",
    "_fraction": "0 to 1",
    "mfu": "0 to 1",
    "hfu": "0 to 1",
}
JSON_TYPES: Mapping[type, str] = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    list: "list",
    dict: "mapping",
    type(None): "null",
}
EXAMPLES: dict[str, str] = {}
"""How a quantity is written, by its name in the schemas."""
ASKED = {
    "run": "run --model gpt3_xl --system dgx-a100-80gb --devices 8 --batch 64",
    "plan": "plan --model gpt3_xl --system dgx-a100-80gb --devices 8 --batch 64",
    "study": "study STUDY",
    "sweep": "sweep SWEEP",
    "solve": "solve STUDY --find devices --such-that days<=900 --price cs-2=30",
    "validate": "validate RUNS",
}
"""The question behind each document of the page on JSON."""
STUDY = """\
{extends: gpt3_20b, model: gpt3_xl, batch_sizes: [64], sampling: {tasks: 0}, candidates:
[{strategy: 3d, system: dgx-a100-80gb, devices: 8}, {strategy: weight-streaming, system: cs-2, devices: 1}]}
"""
SWEEP = """\
{title: t, study: ./STUDY, grid: {recipe.global_batch_size: [64, 128], candidates:
[{strategy: weight-streaming, system: cs-2, devices: [1]}]}}
"""
RUNS = """\
{schema: 1, cases: [{id: a, family: ours, evidence: A, strategy: 3d, measured: {step_time_s: 1.1},
parallel: {data: 8}, system: {device: dgx-a100-80gb, num_devices: 8},
training: {micro_batch_size: 8, global_batch_size: 64, recompute: full},
model: {num_layers: 24, hidden_size: 2048, ffn_hidden_size: 8192, num_attention_heads: 16, vocab_size: 51200,
seq_length: 2048}}]}
"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    cells = ([" ".join(str(cell).split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


# ------------------------------------------------------------------------------------- commands
def commands_page() -> str:
    """Every verb with its help, and the exit codes."""
    os.environ["COLUMNS"] = "100"  # examples are wrapped at the width of the terminal
    parts = ["# Commands\n", "Exit codes and JSON: [continuous use](../howto/continuous.md).\n"]
    for name, verb in _verbs("perfsim", main):
        parts.append(f"## {name}\n\n```text\n{_help(name, verb)}\n```\n")
    return "\n".join(parts)


def _verbs(path: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for name, verb in sorted(group.commands.items()):
        yield f"{path} {name}", verb
        if isinstance(verb, click.Group):
            yield from _verbs(f"{path} {name}", verb)


def _help(name: str, verb: click.Command) -> str:
    context = click.Context(verb, info_name=name, terminal_width=100, max_content_width=100)
    return click.unstyle(verb.get_help(context)).rstrip()


# --------------------------------------------------------------------------------------- Python
def python_page() -> str:
    """Every public name of `perfsim` with its signature, docstring, fields and methods."""
    parts = ["# Python\n", "`import perfsim as ps`. Nothing prints; errors are `ps.PerfsimError`.\n"]
    names = sorted((name for name in dir(ps) if name != "__version__"), key=str.casefold)
    for name in names:
        value = getattr(ps, name)
        kind = "class " if inspect.isclass(value) else ""
        parts.append(f"## {kind}ps.{name}\n\n{_signature(name, value)}{inspect.getdoc(value)}\n")
        if inspect.isclass(value):
            parts.append(table(["member", "meaning"], _members(value)))
    return "\n".join(parts)


def _signature(name: str, value: Any) -> str:
    if inspect.isclass(value):
        return ""
    text = re.sub(r"<function .*? at 0x\w+>", "...", str(inspect.signature(value)))
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", re.sub(r"perfsim\.(?:\w+\.)+", "", text))
    return f"```text\nps.{name}{text}\n```\n\n"


def _members(cls: type) -> Iterator[tuple[str, str]]:
    notes = _notes(cls)
    fields = getattr(cls, "model_fields", None) or getattr(cls, "__dataclass_fields__", {})
    for name in fields:
        if not name.startswith("_"):
            yield f"`{name}`", notes.get(name, "")
    for name, value in inspect.getmembers(cls):
        own = any(name in base.__dict__ for base in cls.__mro__ if base.__module__.startswith("perfsim"))
        if own and not name.startswith(("_", "model_")) and name not in fields:
            call = "()" if callable(value) else ""
            says = callable(value) or hasattr(value, "__get__")  # a constant has the words of its type
            said = inspect.getdoc(value) if says else notes.get(name)
            yield f"`{name}{call}`", (said or "").partition("\n\n")[0]


def _notes(cls: type) -> dict[str, str]:
    """The string under each field of a class and of its parents in perfsim."""
    notes: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if base.__module__.startswith("perfsim")]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for statement, after in pairwise(getattr(body, "body", [])):
            constant = after.value if isinstance(after, ast.Expr) else None
            if isinstance(statement, ast.AnnAssign) and isinstance(constant, ast.Constant):
                notes[ast.unparse(statement.target)] = str(constant.value)
    return notes


# ---------------------------------------------------------------------------------------- files
def files_page() -> str:
    """Keys of YAML files: type with range or unit, default, meaning."""
    intro = (
        "A quantity is a string with a unit. Every file with a name may have `extends`, `name`,\n"
        "`description`, `sources` and `assumed`, which are left out below. `perfsim schema` prints the same\n"
        "as JSON Schemas.\n"
    )
    parts, done = ["# Files\n", intro], set[str]()
    classes = {cls.__name__.lstrip("_"): cls for cls in _subclasses(BaseModel)}
    for kind in FILES:
        parts.append(f"## {kind}\n")
        schema = schema_of(kind)
        for name, body in schema["$defs"].items():
            if name.startswith("quantity."):
                EXAMPLES[name] = f"quantity, as `{body['examples'][0]}`"
        waiting = list(_top(schema))
        while waiting:
            name = waiting.pop(0)
            cls = classes.get(name)
            if name in done or cls is None or issubclass(cls, Calibration):
                continue
            done.add(name)
            body = schema["$defs"].get(name) or schema["$defs"][f"{name}.changes"]
            parts += [f"### {name}\n\n{body.get('description', '')}\n", _keys(cls, body)]
            waiting += [inner for inner in _references(body) if inner not in done]
    return "\n".join(parts)


def _subclasses(cls: type) -> Iterator[type]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def _top(schema: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(_references({key: schema[key] for key in ("then", "else")})))


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix("#/$defs/").removesuffix(".changes")
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _keys(cls: type, body: Mapping[str, Any]) -> str:
    shared = ("extends", "name", "description", "sources", "assumed")
    fields = {field.alias or name: field for name, field in getattr(cls, "model_fields", {}).items()}
    rows = [
        (f"`{key}`", _type(value), _default(fields.get(key)), value.get("description", ""))
        for key, value in body.get("properties", {}).items()
        if key not in shared
    ]
    return table(["key", "type", "default", "meaning"], rows)


def _type(schema: Mapping[str, Any]) -> str:
    """A JSON Schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/").removesuffix(".changes")
        fitted = "a calibration, as `perfsim calibrate` writes it" if name.endswith("Calibration") else ""
        return EXAMPLES.get(name) or fitted or f"[{name}](#{name.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        options = [_type(option) for option in schema.get("anyOf") or schema["oneOf"]]
        return " or ".join(dict.fromkeys(option for option in options if option)) or "any"
    if "then" in schema:
        return _type(schema["then"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"mapping to {_type(inner)}" if isinstance(inner, Mapping) else "mapping"
    return f"{kind}{_range(schema)}"


def _range(schema: Mapping[str, Any]) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None and high is None:
        return ""
    shown = [text for text, bound in ((" from ", low), (" to ", high)) if bound is not None]
    bounds = [
        f"{bound:,}" if bound == int(bound) else f"{bound:g}" for bound in (low, high) if bound is not None
    ]
    return "".join(text + bound for text, bound in zip(shown, bounds, strict=True))


def _default(field: Any) -> str:
    if field is None:
        return ""
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined or value is None or isinstance(value, BaseModel) or value in ("", ()):
        return ""
    return f"`{value}`"


# ----------------------------------------------------------------------------------------- JSON
def json_page() -> str:
    """Keys of the documents that verbs print with `--json`."""
    intro = (
        "Keys of the documents of `--json`, read off the answers to small questions. `[]` is every entry of\n"
        "a list, `*` every name. What is not known is null.\n"
    )
    parts = ["# JSON\n", intro]
    with tempfile.TemporaryDirectory() as folder:
        for verb, question in ASKED.items():
            document = _answer(question, Path(folder))
            rows: dict[str, tuple[str, str]] = {}
            for path, kind in _paths(document):
                key, words = told(verb, path)
                known, _ = rows.get(key, ("null", ""))
                rows[key] = (kind if known == "null" else known, words)
            if silent := [key for key, (_, words) in rows.items() if not words]:
                raise SystemExit(f"perfsim {verb} --json: nothing tells the meaning of {', '.join(silent)}")
            parts.append(f"## perfsim {verb} --json\n")
            cells = [(f"`{key}`", kind, _unit(key), words) for key, (kind, words) in sorted(rows.items())]
            parts.append(table(["key", "type", "unit", "meaning"], cells))
    return "\n".join(parts)


def _answer(question: str, folder: Path) -> Any:
    for name, text in {"STUDY": STUDY, "SWEEP": SWEEP, "RUNS": RUNS}.items():
        (folder / f"{name}.yaml").write_text(text.replace("./STUDY", "./STUDY.yaml"), "utf-8")
        question = question.replace(name, str(folder / f"{name}.yaml"))
    out = ["--out", str(folder / "out")] if question.startswith(("study", "sweep")) else []
    result = CliRunner().invoke(main, [*question.split(), *out, "--json"])
    if result.exit_code:
        raise SystemExit(result.stderr)
    return json.loads(result.stdout)


def _paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every key by its path, and the type of its value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _paths(item, (*path, key))
    elif isinstance(value, list) and value:
        for item in value:
            yield from _paths(item, (*path[:-1], f"{path[-1]}[]"))
    else:
        yield path, JSON_TYPES[type(value)]


def _unit(path: str) -> str:
    for part in reversed(re.findall(r"\w+", path)):
        for suffix in sorted(UNITS, key=len, reverse=True):
            if part.endswith(suffix):
                return UNITS[suffix]
    return ""


def tools_page() -> str:
    """The rows of every tool: its keys, the field of ours that they say, and in which direction."""
    intro = "The keys that `perfsim import` reads and `--emit` writes, from the tables of both."
    parts = [f"# Keys of other tools\n\n{intro} A key in brackets is another spelling, which is only read.\n"]
    shown: list[Any] = []
    for tool in map(tool_named, READ):
        if not tool.rows or tool.rows in shown:  # NeMo has Megatron's
            continue
        shown.append(tool.rows)
        parts.append(f"## {tool.title}\n\n| key | field | read | written |\n|---|---|---|---|")
        for row in (row for row in tool.rows if row.keys):
            first, *others = row.keys.split()
            spelled = f"`{first}`" + (f" ({', '.join(f'`{key}`' for key in others)})" if others else "")
            read = "yes" if row.read else "follows from others" if row.write else "no effect"
            field = row.field.strip("()") if row.field.startswith("(") else f"`{row.field}`"
            is_written = "yes" if row.write and tool.runs else ""
            parts.append(f"| {spelled} | {field.replace('|', ' ')} | {read} | {is_written} |")
        limited = {row.field: row for row in tool.rows if row.gap or row.refusal}
        if tool.runs:
            names = ", ".join(f"`{field}`" for field in limited)
            parts.append(f"\nRefused or named as a gap where the tool has not their value: {names}.")
            parts.append("Settings of recipes and runtimes without a row are named where they are in use.")
        parts.append("")
    return "\n".join([*parts, *trainers_part(), *kinds_part()])


TENSOR_OF_EXPERTS = {
    "if asked": "",
    "alone": "Without expert ranks its tensor ranks divide every expert.",
    "always": "Its tensor ranks divide every expert.",
    "never": "It trains no experts next to tensor ranks.",
}


def trainers_part() -> Iterator[str]:
    """What each tool that trains runs, by release: the table that limits plans and what is emitted."""
    yield "## What tools run\n"
    yield "A plan holds what the tool of its runtime ran when the runtime was measured.\n"
    for trainer in (trainer for trainer in TRAINERS.values() if trainer.rows):
        yield f"### {trainer.title}\n\n{trainer.source}\n\n| axis | values | setting | since | not with |"
        yield "|---|---|---|---|---|"
        for row in trainer.rows:
            values = "any" if row.values is None else ", ".join(map(written, row.values))
            needs = "; ".join(
                f"{name} other than {'/'.join(map(written, of))}" for name, of in row.needs.items()
            )
            needs += f"no multiple of {' × '.join(row.multiple_of)}" if row.multiple_of else ""
            since = f"{row.release}, {row.since or 'no known month'}"
            since += f", until {row.until}" if row.until else ""
            yield f"| `{row.axis}` | {values} | `{row.setting}` | {since} | {needs} |"
        if words := TENSOR_OF_EXPERTS[trainer.divides_experts]:
            yield f"\n{words}"
        if trainer.even:
            yield f"\nIts {trainer.even[0]} has multiples of its stages as layers and micro-batches."
        if trainer.filled:
            yield f"\nIts {' and '.join(trainer.filled)} take as many micro-batches as stages, or more."
        if trainer.no_experts_in:
            yield f"\nIt has no expert parallelism in {' and '.join(trainer.no_experts_in)}."
        if trainer.on_cpu is not None:
            yield f"\nOn the CPU it keeps the states of {' and '.join(trainer.on_cpu)}."
        yield ""


def kinds_part() -> Iterator[str]:
    """The rule of proven layouts, and the kinds of published runs with which it compares."""
    degrees = ", ".join(DEGREES.values())
    yield "## Proven layouts\n"
    yield (
        f"A layout is proven where it differs from a kind of published runs in at most {MOST} of these axes, "
        f"and {degrees} lie in the range of the published runs of that ZeRO stage, generation and sort of "
        "model.\n"
    )
    yield from ("| axis | |\n|---|---|", *(f"| `{axis}` | {words} |" for axis, words in RULE.items()))
    yield f"\n| {' | '.join([*RULE, *DEGREES.values()])} | experts | runs |\n|{'---|' * (len(RULE) + 5)}"
    for kind in sorted(published_kinds(), key=lambda kind: -kind.runs):
        spans = [f"{low} to {high}" if low < high else str(low) for low, high in kind.degrees]
        cells = [str(value) if value != "" else "none" for value in kind.axes]
        yield f"| {' | '.join([*cells, *spans])} | {'yes' if kind.experts else 'no'} | {kind.runs} |"
    yield ""


PAGES = {
    "commands.md": commands_page,
    "python.md": python_page,
    "files.md": files_page,
    "json.md": json_page,
    "tools.md": tools_page,
}


def write(folder: Path = FOLDER) -> None:
    """Write all pages."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
