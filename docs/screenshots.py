"""Pictures of the two pages, as a browser shows them: the explorer, and the report of a comparison."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import expect

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs" / "assets"
DUFL = str(Path(sys.executable).with_name("dufl"))
SOON = 60_000  # milliseconds
REPORT = 1112  # pixels from the top of the report that are shown: to the end of a chart

sys.path.append(str(ROOT / "tests" / "support"))
from browser import browse  # noqa: E402


def report() -> None:
    """The top of the report that `dufl compare` ends with."""
    with TemporaryDirectory() as folder:
        subprocess.run([DUFL, "compare", "--seeds", "2", "--out", folder], check=True, capture_output=True)
        with browse((Path(folder) / "report.html").as_uri()) as tab:
            tab.page.wait_for_selector("html[data-drawn]")
            top = {"x": 0, "y": 0, "width": 1440, "height": REPORT}
            taken = tab.page.screenshot(full_page=True, clip=top)
    save(taken, "report.png", 32, Image.Quantize.MAXCOVERAGE)  # few colours, far apart


def explorer() -> None:
    """The explorer with the paper's defaults, once all of it is there."""
    with served() as address, browse(address) as tab:
        page = tab.page
        algorithm1 = page.get_by_test_id("stMetric").filter(has_text="U against Algorithm 1")
        expect(algorithm1.get_by_test_id("stMetricValue")).not_to_have_text("…", timeout=SOON)
        expect(page.locator(".js-plotly-plot")).to_have_count(6, timeout=SOON)
        expect(page.get_by_text("no update: U =")).to_be_visible(timeout=SOON)
        page.wait_for_timeout(1000)  # until the charts have found their size
        taken = page.screenshot()
    save(taken, "explorer.png", 128, Image.Quantize.FASTOCTREE)  # keeps the colour of a small mark


def save(taken: bytes, name: str, colours: int, method: Image.Quantize) -> None:
    """Put a picture into docs/assets with few colours, so that it stays small."""
    with Image.open(BytesIO(taken)) as image:
        few = image.convert("RGB").quantize(colours, method, dither=Image.Dither.NONE)
        few.save(ASSETS / name, optimize=True)


@contextmanager
def served() -> Iterator[str]:
    """`dufl explore` on a free port; its address."""
    with subprocess.Popen([DUFL, "explore", "--no-browser"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found, "dufl explore did not start"
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


if __name__ == "__main__":
    report()
    explorer()
