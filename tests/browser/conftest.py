"""A headless Chromium without a network, and reports to open in it."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

OFFLINE = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", *OFFLINE]
LOCAL_SCHEMES = ("file:", "data:", "blob:")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    executable = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if executable is None or importlib.util.find_spec("playwright") is None:
        why = "Chromium or playwright is not installed"
        if os.environ.get("PERFSIM_REQUIRE_BROWSER") == "1":
            pytest.fail(f"{why}, and PERFSIM_REQUIRE_BROWSER=1 demands a browser")
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield chromium
        chromium.close()


@dataclass
class Opened:
    """A page that has drawn all its plots, and everything it complained about or asked for."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def asked_elsewhere(self) -> list[str]:
        return [url for url in self.requests if not url.startswith(LOCAL_SCHEMES)]

    def tooltip(self, plot: str, mark: Any) -> str:
        """What the figure says at the middle of a mark."""
        mark.scroll_into_view_if_needed()
        box = mark.bounding_box()
        x = box["x"] + box["width"] / 2
        y = box["y"] + box["height"] / 2
        self.page.mouse.move(x - 1, y - 1)
        self.page.mouse.move(x, y, steps=4)
        label = self.page.locator(f"{plot} .hoverlayer .hovertext").first
        label.wait_for()
        said = str(label.text_content())
        self.page.mouse.move(0, 0)
        return said

    def sideways_px(self) -> float:
        """How much wider the page is than the window."""
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return float(self.page.evaluate(wide))

    def close(self) -> None:
        self.page.context.close()


DRAWN = """() => {
  const plots = [...document.querySelectorAll('.plotly-graph-div')];
  const drawn = plots.every((plot) => plot._fullData && plot.querySelector('.main-svg'));
  return plots.length > 0 && drawn && document.documentElement.dataset.fitted;
}"""


@pytest.fixture(scope="session")
def opener(browser: Any) -> Callable[..., Opened]:
    """Opens a file at a width, offline, and waits until every plot is drawn; `close()` ends it."""

    def opened(path: Path, *, width: int = 1400, height: int = 900, scheme: str = "light") -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
        )
        visit = Opened(context.new_page())
        visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
        visit.page.on(
            "console",
            lambda message: (
                visit.errors.append(message.text) if message.type in {"error", "warning"} else None
            ),
        )
        visit.page.on("request", lambda request: visit.requests.append(request.url))
        visit.page.goto(path.as_uri())
        visit.page.wait_for_function(DRAWN)
        return visit

    return opened


@pytest.fixture
def open_page(opener: Callable[..., Opened]) -> Iterator[Callable[..., Opened]]:
    """The same for one test: what it opens is closed at its end."""
    visits: list[Opened] = []

    def opened(path: Path, **look: Any) -> Opened:
        visits.append(opener(path, **look))
        return visits[-1]

    yield opened
    for visit in visits:
        visit.close()
