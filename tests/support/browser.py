"""A headless browser that records a page's requests and console errors, and checks its accessibility."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: run tools/chromium")

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE, NARROW = (1440, 900), (390, 844)


@dataclass
class Tab:
    """A page in the browser.

    Attributes:
        page: Playwright's page.
        complaints: errors and warnings in the console, and exceptions.
        requests: the address of every request.
    """

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def requests_elsewhere(self, home: str) -> list[str]:
        """Requests to anything but `home` and the page itself."""
        own = (home, "data:", "blob:", home.replace("http", "ws", 1))
        return [address for address in self.requests if not address.startswith(own)]

    def barriers(self) -> list[str]:
        """Accessibility problems: serious and critical findings of axe-core."""
        violations = Axe().run(self.page).response["violations"]
        return [
            f"{rule['id']}: {node['html'][:200]}"
            for rule in violations
            if rule["impact"] in ("serious", "critical")
            for node in rule["nodes"]
        ]


@contextmanager
def browse(
    address: str, size: tuple[int, int] = WIDE, theme: Literal["light", "dark"] = "light", **settings: Any
) -> Iterator[Tab]:
    """Open a page in headless Chromium."""
    assert CHROMIUM is not None
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        try:
            context = browser.new_context(
                viewport={"width": size[0], "height": size[1]}, color_scheme=theme, **settings
            )
            tab = Tab(context.new_page())
            tab.page.on("request", lambda request: tab.requests.append(request.url))
            tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
            tab.page.on(
                "console",
                lambda message: (
                    tab.complaints.append(message.text) if message.type in ("error", "warning") else None
                ),
            )
            tab.page.goto(address)
            yield tab
        finally:
            browser.close()
