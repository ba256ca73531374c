"""What is read from other tools' files: whole samples, and what each key changes where it is another."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.base.errors import InputError
from perfsim.interop import READ, tool_named
from perfsim.interop.formats import import_file
from perfsim.interop.huggingface import FAMILIES, OTHER_KINDS
from perfsim.interop.shell import flags_of
from perfsim.interop.source import Source, leaves, nested
from perfsim.interop.tool import Reading
from perfsim.specs.layout import text_of

Recorded = Callable[..., None]
Others = Callable[[Any], Iterator[Any]]
TESTS = Path(__file__).parents[1]
SAMPLES = sorted((TESTS / "samples/foreign").iterdir())
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = yaml.safe_load(
    (TESTS / "unit/interop/foreign/published_counts.yaml").read_text("utf-8")
)
TOOLS = ("megatron", "nemo", "neox", "deepspeed", "torchtitan", "modelzoo", "huggingface")


@pytest.mark.parametrize("options", [{}, {"part": "recipe"}, {"system": "dgx-a100-80gb"}], ids=str)
def test_samples_are_read_as_they_were(options: dict[str, str], recorded: Recorded) -> None:
    said = {}
    for path in SAMPLES:
        try:
            result = import_file(path, model="llama_7b", **options)
        except InputError as error:
            said[path.name] = [problem.message for problem in error.problems]
        else:
            said[path.name] = [result.text().split("\n"), json.loads(json.dumps(result.as_dict()))]
    recorded(f"samples_{'_'.join(options) or 'whole'}", said)


def said_by(reading: Reading) -> dict[str, Any]:
    """All that a reader took from a file, by dotted path."""
    model = reading.model
    tree = {
        "layout": "" if reading.layout is None else text_of(reading.layout),
        "devices": reading.devices,
        "recipe": reading.recipe,
        "steps": [[step.global_batch_size, step.step_time_s, step.iterations] for step in reading.steps],
        "points": reading.points,
        "gaps": [*reading.settings.gaps, *([] if model is None else model.remarks)],
        "model": {} if model is None else model.fields,
        "lacking": {} if model is None else model.lacking,
    }
    return dict(leaves(tree))


def read(name: str, values: Mapping[str, Any], model: str = "") -> tuple[dict[str, Any], str]:
    """What a tool's reader says of values by dotted path, and the words that it knows for a wrong one."""
    dump = "".join(f"  {key} .... {value}\n" for key, value in values.items())
    document: Any = dump if name == "megatron" else nested(values)
    text = dump if name == "megatron" else json.dumps(document, indent=0)
    return read_from(name, Source(Path("file"), text, model=model), document)


def read_from(name: str, source: Source, document: Any) -> tuple[dict[str, Any], str]:
    """What a tool's reader says of a document, and the help where it refuses it."""
    try:
        return said_by(tool_named(name).read(source, document)), ""
    except InputError as error:
        (problem,) = error.problems
        where = f"{problem.line} {problem.excerpt}".strip()
        return {"refused": f"{where}: {problem.message}", "help": problem.help}, problem.help


def others(value: Any) -> Iterator[Any]:
    """Values that a key may have instead."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (-2, 0, 1, value + 1, 10**9)
    elif isinstance(value, list):
        yield from ([], value[:1])
    else:
        yield from (True, 2, "zzz")


def changes(
    name: str, values: Mapping[str, Any], keys: Sequence[str], model: str = "", others: Others = others
) -> dict[str, Any]:
    """What differs where a key is left out or has another value, or a word that the reader knows."""
    whole, _ = read(name, values, model)
    differing = {}

    def try_it(changed: Mapping[str, Any], label: str) -> str:
        now, known = read(name, changed, model)
        said = {key: now.get(key) for key in [*now, *whole] if now.get(key) != whole.get(key)}
        if said:
            differing[label] = said
        return known

    for key in dict.fromkeys([*values, *keys]):
        if key in values:
            try_it({other: value for other, value in values.items() if other != key}, f"without {key}")
        for value in others(values.get(key)):
            known = try_it({**values, key: value}, f"{key}: {value}")
            for word in known.rpartition("known: ")[2].split(", ") if "known: " in known else ():
                try_it({**values, key: word}, f"{key}: {word}")
    return {"whole": whole, "differing": differing}


@pytest.mark.parametrize("name", TOOLS)
def test_each_key_says_what_it_said(name: str, inputs: dict[str, Any], recorded: Recorded) -> None:
    more = inputs["foreign"][name]["more"].split()
    keys = [key for row in tool_named(name).rows for key in row.keys.split()]
    for case, values in inputs["foreign"][name]["files"].items():
        model = "llama_7b" if name in ("deepspeed", "torchtitan") else ""
        recorded(f"keys_{name}_{case}", changes(name, dict(leaves(values)), [*keys, *more], model))
        keys = []  # what is absent from the first file says the same in others


def test_each_key_of_a_family_says_what_it_said(inputs: dict[str, Any], recorded: Recorded) -> None:
    keys = inputs["foreign"]["huggingface"]["more"].split()
    said = {}
    for name, (_, values) in PUBLISHED.items():
        said[name] = changes("huggingface", dict(leaves(values)), keys, others=switched)
    recorded("keys_of_families", said)


def switched(value: Any) -> Iterator[Any]:
    """A flag that is there, or that is not; a number for what is absent."""
    yield from {bool: (not value,), type(None): (True, 2)}.get(type(value), ())


def test_each_family_reads_the_same_keys_as_it_did(inputs: dict[str, Any], recorded: Recorded) -> None:
    base = inputs["foreign"]["huggingface"]["files"]["dense"]
    kinds = (*FAMILIES, *OTHER_KINDS)
    recorded("families", {kind: read("huggingface", base | {"model_type": kind})[0] for kind in kinds})


def test_each_line_says_what_it_said(inputs: dict[str, Any], recorded: Recorded) -> None:
    said = {}
    for name, texts in inputs["texts"].items():
        for case, text in texts.items():
            lines = text.split("\n")
            for left_out in range(-1, len(lines)):
                rest = "\n".join(line for number, line in enumerate(lines) if number != left_out)
                source = Source(Path(case), rest)
                answer, _ = read_from(name, source, rest)
                what = f"{name} {case} without line {left_out + 1}"
                said[what] = [tool_named(name).recognise(rest), answer]
    recorded("lines", said)


def test_tools_recognise_what_they_did(inputs: dict[str, Any], recorded: Recorded) -> None:
    said = {}
    for document in inputs["documents"]:
        said[json.dumps(document)] = [tool for tool in READ if tool_named(tool).recognise(document)]
    recorded("recognised", said)


def test_scripts_have_the_flags_that_they_had(inputs: dict[str, Any], recorded: Recorded) -> None:
    recorded("scripts", {script: flags_of(script, "--n") for script in inputs["scripts"]})
