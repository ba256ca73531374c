"""The page as text; what a browser makes of it stands in tests/browser."""

import base64
import dataclasses
import json
import re
import zlib
from pathlib import Path
from types import ModuleType

import pytest
from plotly.offline import get_plotlyjs_version

import perfsim.report
from perfsim.report.page import Page, Section
from perfsim.report.study import study_document, study_lines, study_page
from perfsim.report.study_figures import timelines
from perfsim.studies.answers import StudyResult
from perfsim.version import __version__

TIMELINES = [f"timeline-{number}" for number in range(4)]
FIGURES = ("time-to-accuracy", "loss", "dates", "step-time", "memory", *TIMELINES, "tornado")


@pytest.fixture(scope="module")
def page(result: StudyResult, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("report")
    return study_page(result, trace_names=["trace.json.gz"]).write(out / "new").read_text("utf-8")


def test_every_figure_has_its_fixed_id_a_description_and_a_table(page: str, factory: ModuleType) -> None:
    tags = factory.tags(re.sub(r"<script>.{1000000,}?</script>", "", page, flags=re.DOTALL))
    plots = [attributes["id"] for _, attributes in tags if attributes.get("class") == "plotly-graph-div"]
    assert plots == [f"figure-{name}" for name in FIGURES]
    described = [attributes for _, attributes in tags if attributes.get("class") == "plot"]
    assert all(len(attributes["aria-label"] or "") > 40 for attributes in described)
    assert [tag for tag, _ in tags].count("details") == len(FIGURES) + 1, "and the inputs"


def test_a_page_ends_in_the_version_the_digest_and_the_command(result: StudyResult, tmp_path: Path) -> None:
    known = dataclasses.replace(
        result, command="perfsim study gpt3_20b --compare '3d,<b>'", inputs_digest="3f9c00aa11bb"
    )
    footer = study_page(known).write(tmp_path).read_text("utf-8").partition("<footer>")[2]
    assert f"perfsim {__version__} \u00b7 inputs 3f9c00aa11bb" in footer
    assert "<code>perfsim study gpt3_20b --compare &#39;3d,&lt;b&gt;&#39;</code>" in footer
    document = study_document(known)
    assert document["version"] == __version__
    assert (document["command"], document["inputs_digest"]) == (known.command, known.inputs_digest)


def test_sources_and_traces_are_links_and_text_is_not(page: str) -> None:
    assert '<a href="./trace.json.gz" download>trace.json.gz</a>' in page
    text = "A <b> of <https://example.org/a?b=1&c=2>, and https://example.org/d. Not javascript:alert(1)"
    written = Page("Links", [Section("Links", text)]).html()
    assert (
        'A &lt;b&gt; of <a href="https://example.org/a?b=1&amp;c=2" rel="noreferrer">'
        'https://example.org/a?b=1&amp;c=2</a>, and <a href="https://example.org/d" rel="noreferrer">'
        "https://example.org/d</a>. Not javascript:alert(1)"
    ) in written


def test_the_installed_plotly_is_there_once_with_licence_and_alone(page: str, factory: ModuleType) -> None:
    folder = Path(perfsim.report.__file__).parent / "vendor"
    assert (folder / f"plotly-cartesian-{get_plotlyjs_version()}.min.js.gz").is_file()
    assert "MIT License" in (folder / "LICENSE.plotly").read_text("utf-8")
    assert f"plotly.js (cartesian - minified) v{get_plotlyjs_version()}" in page
    assert page.count("plotly.js (cartesian - minified) v") == 1
    tags = factory.tags(page)
    assert len(page.encode()) < 2_000_000
    loaded = [attributes for tag, attributes in tags if "src" in attributes or tag in {"iframe", "object"}]
    assert not loaded
    assert [attributes["href"] for tag, attributes in tags if tag == "link"] == ["data:,"]
    policy = next(a["content"] for _, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_a_sparse_result_still_makes_a_page(sparse: StudyResult, tmp_path: Path) -> None:
    page = study_page(sparse).write(tmp_path).read_text("utf-8")
    assert "figure-timeline-0" in page
    assert "figure-timeline-1" not in page
    assert "trace.json" not in page
    assert not re.search(r"\bnan\b", re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL))


def test_two_sections_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match=r"memory; give every section its own slug"):
        Page("Twice", [Section("Memory"), Section("Memory")]).html()


def test_a_figure_of_many_bars_is_compressed_and_can_be_read_back(result: StudyResult) -> None:
    wafer = result.candidates[1]
    bars = [bar for bar in wafer.timeline for _ in range(6)]
    _, section = timelines([dataclasses.replace(wafer, timeline=tuple(bars))])
    figure = section.figure
    page = Page("Many", [Section("Many", figure=figure)]).html()
    packed = re.search(r'data-figure="figure-many">([^<]*)<', page)
    document = json.loads(zlib.decompress(base64.b64decode(packed[1])))
    assert document["figure"] == json.loads(figure.to_json())
    assert len(packed[1]) < len(figure.to_json()) / 4
    assert 'id="figure-many" class="plotly-graph-div"' in page


def test_what_a_verification_got_wrong_is_named_on_page_and_terminal(result: StudyResult) -> None:
    name, own = next(iter(result.sampling.items()))
    wrong = {name: dataclasses.replace(own, passed=False, failed=("mlp.up of stage 1",))}
    known = dataclasses.replace(result, sampling=wrong)
    said = "WRONG (mlp.up of stage 1)"
    assert said in " ".join(study_lines(known))
    assert any(said in section.lead for section in study_page(known).sections)


def test_no_line_of_an_answer_breaks_between_a_number_and_its_unit() -> None:
    page = Page("Which?", [], headline="Sure with 95 % after 28.8 days", verdict="In 2 s")
    assert "Sure with 95\u00a0% after 28.8\u00a0days" in page.html()
    assert "In 2\u00a0s" in page.html()
