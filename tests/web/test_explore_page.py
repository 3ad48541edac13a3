"""The explorer in a real browser, served as a user would serve it."""

import json
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from browser import NARROW, Tab, browse, needs_chromium

pytestmark = needs_chromium

CSV = "initial_volume,collection_cost,training_cost\n100,1e-3,1e-5\n200,2e-3,2e-5\n300,5e-4,5e-5\n"
LIMITS = """
[game]
num_rounds = 20
participation = "voluntary"
[clients]
initial_volume = 100
capacity = 120
reservation = 25
"""
SOON = 30_000  # milliseconds that a busy machine may take
ALGORITHM1 = "U vs. Algorithm 1"


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    """`dufl explore`, started once; its address."""
    with socket.socket() as probe:  # a port of its own: two servers that start at once want the same
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    program = [sys.executable, "-c", "from dufl.cli import main; main()", "explore", "--no-browser"]
    program += ["--port", port]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        ready, _, _ = select.select([server.stdout], [], [], 120)
        line = server.stdout.readline() if ready else ""
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        try:
            assert address, line
            yield address[0]
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
        assert server.returncode == 0
        assert server.stderr.read() == ""


@pytest.fixture(scope="module")
def only_tab(home: str) -> Iterator[Tab]:
    """One tab for all tests: a browser takes long to start."""
    with browse(
        "about:blank", accept_downloads=True, permissions=["clipboard-read", "clipboard-write"]
    ) as tab:
        yield tab


@pytest.fixture
def tab(only_tab: Tab, home: str) -> Iterator[Tab]:
    """The page, freshly opened; afterwards it must not have complained nor asked another host."""
    only_tab.complaints.clear()
    only_tab.requests.clear()
    arrive(only_tab.page, home)
    yield only_tab
    assert only_tab.complaints == []
    assert only_tab.requests_elsewhere(home) == []


def arrive(page: Page, home: str) -> None:
    page.goto(home)
    settled(page)


def settled(page: Page) -> None:
    """Wait until Algorithm 1's figure and all six charts are there."""
    expect(figure(page, ALGORITHM1)).not_to_have_text("…", timeout=SOON)
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible(timeout=SOON)
    expect(page.locator(".js-plotly-plot")).to_have_count(6, timeout=SOON)


def figure(page: Page, label: str) -> Locator:
    return page.get_by_test_id("stMetric").filter(has_text=label).get_by_test_id("stMetricValue")


def number(page: Page, label: str) -> float:
    return float(figure(page, label).inner_text().replace(",", ""))


def command(page: Page) -> str:
    return page.get_by_test_id("stCode").inner_text()


def choose_file(page: Page, label: str, name: str, content: str) -> None:
    file: FilePayload = {"name": name, "mimeType": "text/plain", "buffer": content.encode()}
    page.get_by_test_id("stFileUploader").filter(has_text=label).locator("input").set_input_files([file])


def download(page: Page, label: str) -> str:
    with page.expect_download(timeout=SOON) as started:
        page.get_by_role("button", name=label).click()
    return Path(started.value.path()).read_text(encoding="utf-8")


def test_it_shows_the_paper_s_plan(tab: Tab) -> None:
    page = tab.page
    expect(page.get_by_role("heading", level=1)).to_have_text(
        "Pay 53.02 per round and keep 29.6 % of old data"
    )
    expect(figure(page, "Server cost U")).to_have_text("2.399")
    expect(figure(page, ALGORITHM1)).to_have_text("−5.2 %")
    for text in ("this plan: U = 2.399", "Algorithm 1: U = 2.530", "no update: U = 28.5"):
        expect(page.get_by_text(text)).to_be_visible()
    assert command(page) == "dufl plan"
    assert page.title() == "DUFL explorer"


def test_a_higher_sensitivity_pays_more_and_keeps_less(tab: Tab) -> None:
    page = tab.page
    payment, rate = number(page, "Payment R"), number(page, "Conservation rate θ")
    slider = page.get_by_role("slider", name="Time sensitivity σ")
    slider.focus()
    for _ in range(5):
        slider.press("ArrowRight")
    expect(page.get_by_test_id("stCode")).to_have_text(
        "dufl plan --set game.time_sensitivity=0.8", timeout=SOON
    )
    settled(page)
    assert number(page, "Payment R") > payment
    assert number(page, "Conservation rate θ") < rate


def test_a_pinned_rate_is_answered(tab: Tab) -> None:
    page = tab.page
    page.get_by_text("Fix conservation rate θ").click()
    slider = page.get_by_role("slider", name="Conservation rate θ")
    slider.focus()
    slider.press("End")
    expect(figure(page, "Conservation rate θ")).to_have_text("1.000", timeout=SOON)
    expect(page.get_by_text("+0.704 from optimum")).to_be_visible()
    expect(page.get_by_text("optimum: U = 2.399")).to_be_visible(timeout=SOON)
    assert command(page) == "dufl plan --conservation-rate 1.0"


def test_clients_from_a_csv_file(tab: Tab) -> None:
    page = tab.page
    choose_file(page, "Load clients from a CSV file", "clients.csv", CSV)
    expect(page.get_by_text("3 clients · 100 rounds")).to_be_visible(timeout=SOON)
    expect(page.get_by_test_id("stCode")).to_have_text("dufl plan --set clients.file=clients.csv")
    expect(page.get_by_text("Volumes and costs from clients.csv.")).to_be_visible()
    settled(page)
    assert download(page, "Clients (CSV)").count("\n") == 4


def test_a_broken_csv_file_is_explained(tab: Tab) -> None:
    page = tab.page
    choose_file(page, "Load clients from a CSV file", "clients.csv", CSV.replace("2e-3", "cheap"))
    message = "clients.csv line 3: collection_cost must be a number, got 'cheap'"
    expect(page.get_by_test_id("stSidebar").get_by_text(message)).to_be_visible(timeout=SOON)
    expect(page.get_by_text("15 clients · 100 rounds")).to_be_visible()
    settled(page)
    assert command(page) == "dufl plan"  # the file is not taken


def test_a_toml_file_is_loaded_and_a_broken_one_explained(tab: Tab) -> None:
    page = tab.page
    choose_file(
        page, "Load a TOML file", "mine.toml", "[game]\nnum_rounds = 30\n[training]\nlocal_epochs = 3\n"
    )
    expect(page.get_by_text("15 clients · 30 rounds")).to_be_visible(timeout=SOON)
    settled(page)
    assert command(page) == "dufl plan mine.toml"
    assert "local_epochs = 3" in download(page, "Configuration (TOML)")
    choose_file(page, "Load a TOML file", "wrong.toml", "[game]\nnum_round = 30\n")
    message = "unknown key 'num_round' in [game]: did you mean 'num_rounds'?"
    expect(page.get_by_test_id("stSidebar").get_by_text(message)).to_be_visible(timeout=SOON)


def test_a_wrong_value_is_explained_beside_its_field(tab: Tab) -> None:
    page = tab.page
    field = page.get_by_role("spinbutton", name="Clients N")
    field.fill("0")
    field.press("Enter")
    message = page.get_by_test_id("stSidebar").get_by_text("count must be ≥ 1, got 0")
    expect(message).to_be_visible(timeout=SOON)
    expect(figure(page, "Payment R")).to_have_text("53.02")
    field.fill("20")
    field.press("Enter")
    expect(page.get_by_text("20 clients")).to_be_visible(timeout=SOON)
    expect(message).to_have_count(0)
    settled(page)
    assert command(page) == "dufl plan --set clients.count=20"


def test_the_plan_is_that_of_the_command_line(
    tab: Tab, dufl_command: Callable[..., tuple[int, str, str]]
) -> None:
    page = tab.page
    field = page.get_by_role("spinbutton", name="Rounds T")
    field.fill("20")
    field.press("Enter")
    expect(page.get_by_test_id("stCode")).to_have_text("dufl plan --set game.num_rounds=20", timeout=SOON)
    settled(page)
    page.get_by_test_id("stCode").hover()
    page.get_by_role("button", name="Copy to clipboard").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "dufl plan --set game.num_rounds=20"
    plan = download(page, "Plan (JSON)")
    code, out, _ = dufl_command(*shlex.split(copied)[1:], "--json")
    assert code == 0
    assert plan == out
    assert json.loads(plan)["num_rounds"] == 20


def test_limits_of_clients_are_in_a_section_of_their_own(tab: Tab) -> None:
    page = tab.page
    capacity = page.get_by_role("combobox", name="Capacity C")
    expect(capacity).to_be_hidden()
    page.get_by_text("More about the clients").click()
    expect(capacity).to_be_visible(timeout=SOON)
    page.get_by_role("combobox", name="Reservation").scroll_into_view_if_needed()
    assert tab.barriers() == []
    choose_file(page, "Load a TOML file", "limits.toml", LIMITS)
    expect(page.get_by_text("full buffer in some round").first).to_be_visible(timeout=SOON)
    expect(page.get_by_text(re.compile("clients? stays? away:"))).to_be_visible(timeout=SOON)
    expect(page.get_by_role("spinbutton", name="value").nth(1)).to_be_visible(timeout=SOON)
    settled(page)
    assert tab.barriers() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_telephone_shows_all_of_it(only_tab: Tab, home: str, theme: Literal["light", "dark"]) -> None:
    page = only_tab.page
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    page.emulate_media(color_scheme=theme)
    only_tab.complaints.clear()
    arrive(page, home)
    widths = "[...document.querySelectorAll('body, [data-testid=stMain]')].map(part => part.scrollWidth)"
    assert max(page.evaluate(widths)) <= NARROW[0]
    colour = "getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"
    bright = sum(int(part) for part in re.findall(r"\d+", page.evaluate(colour))[:3]) / 3
    assert bright > 200 if theme == "light" else bright < 60
    assert only_tab.barriers() == []
    assert only_tab.complaints == []
