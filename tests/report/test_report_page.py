"""The report in a real browser, from disk: drawn, silent, usable by all, on every screen and on paper."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page as BrowserPage

from browser import NARROW, WIDE, Tab, browse, needs_chromium
from dufl.report.training_report import write_report
from reports import Page, make_runs

pytestmark = needs_chromium

EARNED = "table:has(caption:has-text('Payment and utility per client'))"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([make_runs(tmp_path_factory.mktemp("runs"))]).path


@pytest.fixture(scope="module")
def tab(report: Path) -> Iterator[Tab]:
    with browse(report.as_uri()) as tab:
        drawn(tab, "light")
        yield tab


def drawn(tab: Tab, how: str) -> None:
    """Wait until all charts are drawn in the colours of a theme, or for paper."""
    tab.page.wait_for_selector(f"html[data-drawn={how}]", timeout=60_000)


def other_page(tab: Tab, **settings: Any) -> BrowserPage:
    """A page in the same browser that shares nothing with the first."""
    browser = tab.page.context.browser
    assert browser is not None
    return browser.new_context(**settings).new_page()


def style(tab: Tab, selector: str, name: str) -> str:
    return str(tab.page.eval_on_selector(selector, f"element => getComputedStyle(element)['{name}']"))


def test_every_chart_is_drawn(report: Path, tab: Tab) -> None:
    charts = Page(report.read_text(encoding="utf-8")).charts
    found = tab.page.eval_on_selector_all(
        ".plot",
        """plots => plots.map(plot => [plot.dataset.chart, plot.clientHeight, plot.querySelectorAll(
            '.scatterlayer path, .barlayer path, .contourlayer path').length])""",
    )
    assert [name for name, _, _ in found] == list(charts)
    assert [name for name, height, marks in found if height < 200 or marks == 0] == []
    assert tab.complaints == []
    assert tab.requests == [report.as_uri()]


def test_nothing_keeps_anyone_out(tab: Tab) -> None:
    """In both themes, on a large screen and a small one, with everything unfolded."""
    page = tab.page
    for summary in page.query_selector_all("summary"):
        summary.click()
    for width, height in (NARROW, WIDE):
        page.set_viewport_size({"width": width, "height": height})
        for theme in ("dark", "light"):
            page.emulate_media(color_scheme=theme)
            drawn(tab, theme)
            assert tab.barriers() == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        edges = page.eval_on_selector_all("svg", "all => all.map(e => e.getBoundingClientRect().right)")
        assert max(edges) <= width
    assert tab.complaints == []


def test_tables_sort_by_click_and_by_key(tab: Tab) -> None:
    head = tab.page.locator(f"{EARNED} thead th").nth(1)

    def column() -> list[float]:
        values = "rows => rows.map(row => Number(row.cells[1].dataset.value))"
        return list(tab.page.eval_on_selector_all(f"{EARNED} tbody tr", values))

    before = sorted(column())
    head.locator("button").click()
    assert (head.get_attribute("aria-sort"), column()) == ("descending", before[::-1])
    head.locator("button").focus()
    tab.page.keyboard.press("Enter")
    assert (head.get_attribute("aria-sort"), column()) == ("ascending", before)
    tab.page.locator(f"{EARNED} thead button").first.click()
    assert head.get_attribute("aria-sort") is None


def test_the_keyboard_reaches_everything(tab: Tab) -> None:
    page = tab.page
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim().slice(0, 30)"))
    assert {"CSV", "accuracy (%)", "Versions and machine"} <= reached


def test_the_csv_is_what_it_says(report: Path, tab: Tab) -> None:
    charts = Page(report.read_text(encoding="utf-8")).charts
    for name in ("accuracy", "cost_surface"):
        with tab.page.expect_download() as coming:
            tab.page.click(f"a.csv[data-chart={name}]")
        assert coming.value.suggested_filename == f"{name}.csv"
        assert Path(coming.value.path()).read_text(encoding="utf-8") == charts[name]["csv"]


def test_it_can_be_printed(tab: Tab) -> None:
    page = tab.page
    page.set_viewport_size({"width": 700, "height": 990})
    page.emulate_media(color_scheme="dark", media="print")
    drawn(tab, "paper")
    assert style(tab, "body", "backgroundColor") == "rgb(255, 255, 255)"
    assert style(tab, "#chart-utility .xtick text", "fill") == style(tab, "h1", "color")
    for hidden in (".bar", "a.csv", ".hint"):
        assert not page.locator(hidden).first.is_visible()
    assert page.locator("details pre").first.is_visible()
    assert style(tab, ".chart", "breakInside") == "avoid"
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    page.emulate_media(color_scheme="light", media="screen")
    drawn(tab, "light")
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})


def test_the_theme_switches_and_is_remembered(tab: Tab) -> None:
    page = tab.page
    page.emulate_media(color_scheme="dark")
    drawn(tab, "dark")
    where = (("body", "backgroundColor"), ("#chart-accuracy .xtick text", "fill"), ("path.js-line", "stroke"))
    night = [style(tab, *place) for place in where]
    assert page.get_attribute("#theme", "aria-label") == "Switch to light colours"
    page.click("#theme")
    drawn(tab, "light")
    assert all(style(tab, *place) != before for place, before in zip(where, night, strict=True))
    page.reload()
    drawn(tab, "light")
    assert style(tab, "body", "backgroundColor") != night[0]
    assert tab.complaints == []


def test_without_what_the_charts_need(report: Path, tab: Tab) -> None:
    """The tables are there without JavaScript; a browser that is too old is told so."""
    page = other_page(tab, java_script_enabled=False)
    page.goto(report.as_uri())
    assert page.locator("noscript p").is_visible()
    assert page.locator("table").first.is_visible()
    assert not page.locator("#theme").is_visible()
    assert not page.locator(".plot").first.is_visible()
    page = other_page(tab)
    page.add_init_script("delete window.DecompressionStream")
    page.goto(report.as_uri())
    page.wait_for_selector("#trouble:not([hidden])")
    assert "this browser is too old" in page.inner_text("#trouble")
    assert page.locator("table").first.is_visible()
