"""What a release takes along: citation, recipe, workflows and templates say what the package says."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import perfsim

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / ".github/conda/meta.yaml"
FORMS = sorted((ROOT / ".github").rglob("*.yml"))


def test_citation_and_recipe_name_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    named = re.search(r'set version = "(.*)"', RECIPE.read_text(encoding="utf-8"))
    assert named
    assert citation["version"] == named[1] == perfsim.__version__


def test_the_recipe_needs_what_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {requirement.partition(";")[0].replace(" ", "") for requirement in project["dependencies"]}
    text = re.sub(r"\{%.*?%\}", "", RECIPE.read_text(encoding="utf-8"))
    recipe = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "VALUE", text))
    runs = {requirement.replace(" ", "") for requirement in recipe["requirements"]["run"]}
    assert runs == needed | {f"python{project['requires-python']}"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_workflows_and_templates_are_complete(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.parent.name == "workflows":
        assert form["permissions"] == {"contents": "read"}
        assert all(job["steps"] and job["runs-on"] for job in form["jobs"].values())
    else:
        assert {"name", "description", "body"} <= set(form)
        assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_every_report_names_the_commit_that_it_was_made_on() -> None:
    commits = yaml.safe_load((ROOT / "reports/records.yaml").read_text(encoding="utf-8"))
    reports = {path.name for path in (ROOT / "reports").glob("*.md")} - {"README.md"}
    assert set(commits) == reports
    assert all(re.fullmatch("[0-9a-f]{8}", str(commit)) for commit in commits.values())
