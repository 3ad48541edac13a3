"""Pictures of pages that a server makes: the explorer, as `dufl explore` serves it."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect

COLOURS = 128  # enough for a page, whose picture then stays small
SOON = 60_000  # milliseconds


def explorer(path: Path) -> None:
    """The explorer with the paper's defaults, once all of it is there."""
    sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
    from browser import browse

    with served() as address, browse(address) as tab:
        page = tab.page
        algorithm1 = page.get_by_test_id("stMetric").filter(has_text="U against Algorithm 1")
        expect(algorithm1.get_by_test_id("stMetricValue")).not_to_have_text("…", timeout=SOON)
        expect(page.locator(".js-plotly-plot")).to_have_count(6, timeout=SOON)
        expect(page.get_by_text("no update: U =")).to_be_visible(timeout=SOON)
        page.wait_for_timeout(1000)  # until the charts have found their size
        with Image.open(BytesIO(page.screenshot())) as picture:
            every = Image.Quantize.FASTOCTREE  # keeps the colour of a small mark
            few = picture.convert("RGB").quantize(COLOURS, every, dither=Image.Dither.NONE)
            few.save(path, optimize=True)


@contextmanager
def served() -> Iterator[str]:
    """`dufl explore` on a free port; its address."""
    program = [str(Path(sys.executable).with_name("dufl")), "explore", "--no-browser"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found, "dufl explore did not start"
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


if __name__ == "__main__":
    explorer(Path(__file__).resolve().parent / "assets" / "explorer.png")
