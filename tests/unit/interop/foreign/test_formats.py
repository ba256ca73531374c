"""Formats are told apart by content; what is no format, or no file, is refused with what was looked for."""

from pathlib import Path

import pytest

from perfsim.base.errors import InputError
from perfsim.catalog import data_root
from perfsim.interop.formats import format_of, import_file


@pytest.mark.parametrize("folder", ["workloads/models", "workloads/recipes", "studies", "hardware/systems"])
def test_no_file_of_perfsims_own_is_taken_for_a_foreign_one(folder: str) -> None:
    paths = list((data_root() / folder).rglob("*.yaml"))
    assert paths
    assert [path for path in paths if format_of(path)] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no known format was recognised"),
        (b"hello", "huggingface: Hugging Face config.json, by `model_type`"),
        (b'{"model_type": ', r"config.json:1: malformed JSON"),
        (b'{"a": NaN}', "NaN is not a finite number"),
        (b"\xff\xfe\x00", ":1: the byte 0xff is not UTF-8 text"),
        (b"[" * 100_000, "nested more than|no known format"),
        (b"{a: " * 5_000, "no known format"),
        (b"\x00", "no known format"),
    ],
)
def test_what_has_no_format_is_refused_with_the_formats(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        import_file(path)


LEVELS = "\n".join(f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in range(9))}}}" for n in range(1, 12))


@pytest.mark.parametrize(
    ("name", "format_name", "message"),
    [
        ("absent.json", "", "there is no such file"),
        (".", "", "is a directory"),
        ("shape.json", "nemoo", "unknown format 'nemoo'"),
        (
            *("shape.json", "huggingface"),
            r"json:1: hidden_size is missing .*\n.*\n.*help: the file has `hidden_siz`",
        ),
        ("bomb.yaml", "", "more than 100000 keys|no known format"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, name: str, format_name: str, message: str) -> None:
    (tmp_path / "shape.json").write_text('{"a": 1, "hidden_siz": 64}', encoding="utf-8")
    (tmp_path / "bomb.yaml").write_text(f"a0: &a0 {{x: 1}}\n{LEVELS}\nmodel_type: llama\nhidden_size: 64\n")
    with pytest.raises(InputError, match=message):
        import_file(tmp_path / name, format_name)
