"""Prints the lowest releases that pyproject.toml allows, for pip: `make oldest` tests with them."""

import sys
import tomllib
from pathlib import Path

NEEDED = ("distributed", "hypothesis", "jsonschema", "pandas", "protobuf", "pyarrow", "pytest", "scipy")
"""Of the development tools, those that the tests of `make oldest` import."""


def bounds(project: dict[str, object]) -> list[str]:
    """`numpy==1.26` for every dependency, and for the tools that tests import."""
    dependencies = project["dependencies"]
    extras = project["optional-dependencies"]
    assert isinstance(dependencies, list)
    assert isinstance(extras, dict)
    wanted = [*dependencies, *(line for line in extras["dev"] if line.partition(">=")[0] in NEEDED)]
    return [line.replace(">=", "==") for line in wanted]


if __name__ == "__main__":
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    sys.stdout.write("\n".join(bounds(tomllib.loads(pyproject.read_text("utf-8"))["project"])) + "\n")
