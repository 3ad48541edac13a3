"""Regenerate everything in README.md and docs/ that comes from running the project: `make figures`.

pictures   docs/assets/*.png
tables     between `<!-- begin NAME -->` and `<!-- end NAME -->` in a page
sessions   every ```console block: lines that start with `$ ` are run, and their output is inserted

The sessions of one page share a temporary folder; a block with title="NAME" is a file in it.
No number is typed by hand, so outdated output shows up in the diff.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import recorded_figures
import screenshots
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from PIL import Image

import dufl
from dufl.data.ageing import Ageing
from dufl.data.datasets import load_dataset
from dufl.experiment.compare import compare, grid
from dufl.experiment.comparison import Cell
from dufl.experiment.config import Experiment
from dufl.experiment.drift import measure_drift
from dufl.experiment.files import write_text
from dufl.game.dynamics import Array
from dufl.game.leader import FIXED_POINT
from dufl.game.plan import Plan
from dufl.report.drift_figure import drift_figure
from dufl.report.figures import BLUE, GREEN, GREY, ORANGE, new_figure, plot_plan, save, style
from dufl.report.sample_images import data_figure

DOCS = Path(__file__).resolve().parent
PAGES = (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")))
SEEDS = 4
SENSITIVITIES = ("1.25", "0.75", "0.41", "0.2", "0.1")
POPULATIONS = (2, 5, 15, 50, 150, 500, 1500)
ALGORITHMS = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx, μ = {proximal_mu:g}",
    "feddyn": "FedDyn, α = {feddyn_alpha:g}",
}
TRAINING = {"training.feddyn_alpha": 0.1}  # settings of the comparison of algorithms
TRAINING_SEEDS = 2
COLOURS = 128  # per picture
SIZE = 800_000  # bytes, for all pictures together

Row = dict[str, Any]
Rows = list[Row]
Column = tuple[str, Callable[[Row], float], str]

_SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r'^```\w+ title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def main() -> None:
    """Pictures, then tables, then sessions."""
    leaders, influence = leader_rows(), influence_rows()
    with style():
        plan, baseline = dufl.solve(), algorithm1(dufl.Game())
        publish(plot_plan(plan, "surface", baseline=baseline), "cost_surface")
        publish(plot_plan(plan), "trajectories")
        publish(leaders_figure(leaders), "leaders")
        publish(influence_figure(influence), "influence")
        publish(data_figure(load_dataset("digits"), Ageing(time_sensitivity=1.25)), "ages")
        publish(training_figure(Experiment.from_toml(changes=TRAINING)), "training")
        publish(ranks_figure(), "ranks")
        if recorded_figures.available():
            found = recorded_figures.comparisons()
            publish(recorded_figures.front_figure(found), "freshness")
            publish(recorded_figures.all_figure(found), "recordings")
            splice("recordings", recorded_figures.table(found))
            publish(drift_figure(measure_drift(dufl.load_recording("insects"))), "drift")
    screenshots.report()
    screenshots.explorer()
    splice("leaders", leaders_table(leaders))
    splice("influence", influence_table(influence))
    for page in PAGES:
        rerun(page)
    size = sum(path.stat().st_size for path in (DOCS / "assets").iterdir())
    assert size <= SIZE, f"docs/assets holds {size} bytes, more than {SIZE}"


def algorithm1(game: dufl.Game) -> Plan:
    """The plan of Algorithm 1 with the options that `dufl plan` and `dufl sweep` use."""
    return dufl.solve(game, method="algorithm1", algorithm1=FIXED_POINT)


def leader_rows() -> Rows:
    """The result of `dufl sweep` over σ: one row per value and draw of the clients."""
    axis = f"game.time_sensitivity={','.join(SENSITIVITIES)}"
    found = run(["dufl", "sweep", axis, "--seeds", str(SEEDS), "--json"])
    rows: Rows = json.loads(found)["rows"]
    return [{"value": row["game.time_sensitivity"], **row} for row in rows]


def influence_rows() -> Rows:
    """The error of the mean field: one row per number of clients and draw.

    γ is scaled by 15/N and the payment range by N/15, so that the best offer stays inside its range.
    """
    rows = []
    for count in POPULATIONS:
        for seed in range(SEEDS):
            game = dufl.Game(
                clients=dufl.Clients.draw(count, seed),
                payment_weight=1e-4 * 15 / count,
                payment_range=(0.0, 500.0 * count / 15),
            )
            rows.append({"value": count, "seed": seed} | influence_of(game))
    return rows


def influence_of(game: dufl.Game) -> Row:
    """The mean-field plan of a game, compared with the Nash response to the same offer."""
    plan = dufl.solve(game)
    met = dufl.equilibrium(
        game, payment=plan.payment, conservation_rate=plan.conservation_rate, competition="nash"
    )
    best = dufl.solve(game, competition="nash")
    return {
        "payment": plan.payment,
        "conservation_rate": plan.conservation_rate,
        "gain": dufl.certify(plan).influence,
        "overstated": float(plan.total_volume[1:].mean() / met.total_volume[1:].mean() - 1),
        "regret": met.server_cost / best.server_cost - 1,
    }


def leaders_figure(rows: Rows) -> Figure:
    """Payment, conservation rate and cost over σ, for both leaders."""
    figure, axes = new_figure(9.0, 2.9, ncols=3)
    places = [float(value) for value in SENSITIVITIES]
    panels = (
        ("Payment per round R", "payment", "algorithm1_payment"),
        ("Conservation rate θ", "conservation_rate", "algorithm1_conservation_rate"),
        ("Server cost U", "server_cost", "algorithm1_cost"),
    )
    for axis, (title, ours, theirs) in zip(axes, panels, strict=True):
        draws(axis, places, groups(rows, theirs), ORANGE, "s", "Algorithm 1")
        draws(axis, places, groups(rows, ours), BLUE, "o", "Stackelberg")
        axis.set(title=title, xlabel="time sensitivity σ", xlim=(0, None))
        axis.set_xticks(places, SENSITIVITIES)
        axis.set_ylim(bottom=0)
    axes[2].legend(loc="upper left")
    return figure


def influence_figure(rows: Rows) -> Figure:
    """The error of the mean field over the number of clients."""
    figure, axis = new_figure(6.0, 3.4)
    places = [float(count) for count in POPULATIONS]
    series = (
        ("overstated", GREEN, "s-", "overstatement of the total volume"),
        ("gain", BLUE, "o-", "largest gain of a client / its turnover"),
        ("regret", ORANGE, "D-", "server cost above the optimum"),
    )
    for name, color, mark, label in series:
        band(axis, places, groups(rows, name), color, mark, label)
    middle = POPULATIONS.index(150)
    for name, order, text in (("overstated", 1, "1/N"), ("gain", 2, "1/N²")):
        anchor = float(np.mean(groups(rows, name)[middle]))
        guide = [2.0 * anchor * (places[middle] / n) ** order for n in places[middle - 1 :]]
        axis.plot(places[middle - 1 :], guide, ":", color=GREY, linewidth=1.0)
        axis.annotate(text, (places[-1], guide[-1]), xytext=(5, 0), textcoords="offset points",
                      color=GREY, fontsize=8, va="center")  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="clients N", ylabel="relative error")
    axis.set_title("Error of the mean-field approximation")
    axis.xaxis.set_major_locator(FixedLocator(places))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([f"{count:,}" for count in POPULATIONS])
    axis.legend(loc="lower left")
    return figure


def training_figure(config: Experiment) -> Figure:
    """Accuracy over rounds with and without data updates, one panel per algorithm."""
    comparison = compare(grid(config, ALGORITHMS), seeds=TRAINING_SEEDS)
    found = comparison.cells
    arrival = config.data.simulation(config.data.load(), config.game, 0).arrival
    rounds = config.game.num_rounds
    news = [t for t in range(1, rounds) if arrival.count(t) > arrival.count(t - 1)]
    figure, axes = new_figure(9.0, 3.1, ncols=len(ALGORITHMS), sharey=True)
    for axis, (name, title) in zip(axes, ALGORITHMS.items(), strict=True):
        for t in news:
            axis.axvline(t, ymax=0.84, color=GREY, linewidth=0.9, linestyle=":")
        static, fresh = (cell for cell in found if cell.algorithm == name)
        course(axis, static, ORANGE, "no update")
        course(axis, fresh, BLUE, "planned update")
        axis.set(title=title.format(**dict(config.training)), xlabel="rounds", xlim=(0, 1.15 * rounds))
        axis.set_xticks(range(0, rounds + 1, 25))
    axes[0].set(ylabel="test accuracy, %", ylim=(60, 100))
    axes[0].legend(loc="upper left", bbox_to_anchor=(0.0, 1.02))
    for t in news:
        axes[0].annotate("a new\ndigit", (t, 60), xytext=(3, 4), textcoords="offset points", color=GREY,
                         fontsize=7)  # fmt: skip
    return figure


def ranks_figure() -> Figure:
    """The critical-difference diagram of docs/compare.md, of the files that are on it."""
    with TemporaryDirectory() as folder:
        experiments = {}
        for name, text in _FILE.findall((DOCS / "compare.md").read_text(encoding="utf-8")):
            (Path(folder) / name).write_text(text, encoding="utf-8")
            experiments[Path(name).stem] = Experiment.from_toml(Path(folder) / name)
    figure: Figure = compare(grid(experiments, ["fedavg", "feddyn"]), seeds=10).plot_ranks()
    return figure


def course(axis: Any, cell: Cell, color: str, label: str) -> None:
    """The accuracy of a cell over the rounds: mean and range of its seeds, and the final value."""
    curve = 100 * cell.curve("accuracy")
    places = np.arange(1, curve.shape[1] + 1)
    axis.fill_between(places, curve.min(axis=0), curve.max(axis=0), color=color, alpha=0.25, linewidth=0)
    axis.plot(places, curve.mean(axis=0), color=color, label=label)
    last = float(curve[:, -1].mean())
    axis.annotate(f"{last:.1f}", (places[-1], last), xytext=(4, 0), textcoords="offset points",
                  color=color, fontsize=8, va="center")  # fmt: skip


def draws(axis: Any, places: list[float], values: list[Array], color: str, mark: str, label: str) -> None:
    """Every draw of the clients as a marker, and the median as a line."""
    axis.plot(places, [np.median(v) for v in values], color=color, linewidth=1.2, alpha=0.7)
    for place, drawn in zip(places, values, strict=True):
        axis.plot(np.full(drawn.size, place), drawn, mark, color=color, ms=5, alpha=0.75,
                  mew=0, clip_on=False, zorder=4, label=label if place == places[0] else None)  # fmt: skip


def band(axis: Any, places: list[float], values: list[Array], color: str, mark: str, label: str) -> None:
    """The mean over draws as a line, and their range around it."""
    axis.plot(places, [v.mean() for v in values], mark, color=color, ms=4, label=label)
    low, high = [v.min() for v in values], [v.max() for v in values]
    axis.fill_between(places, low, high, color=color, alpha=0.2, linewidth=0)


def leaders_table(rows: Rows) -> str:
    """Both leaders side by side."""

    def saved(ours: str, theirs: str) -> Callable[[Row], float]:
        return lambda row: 100 * (1 - row[ours] / row[theirs]) if row[theirs] > 0 else np.nan

    columns: Sequence[Column] = (
        ("R", lambda row: row["payment"], ".1f"),
        ("θ", lambda row: row["conservation_rate"], ".2f"),
        ("U", lambda row: row["server_cost"], ".2f"),
        ("Alg. 1 R", lambda row: row["algorithm1_payment"], ".1f"),
        ("Alg. 1 θ", lambda row: row["algorithm1_conservation_rate"], ".2f"),
        ("Alg. 1 U", lambda row: row["algorithm1_cost"], ".2f"),
        ("no update U", lambda row: row["no_update_cost"], ".2f"),
        ("saved in U, %", saved("server_cost", "algorithm1_cost"), ".1f"),
        ("saved in R, %", saved("payment", "algorithm1_payment"), ".1f"),
    )
    return table("σ", rows, columns)


def influence_table(rows: Rows) -> str:
    """The error of the mean field over N."""
    columns: Sequence[Column] = (
        ("R", lambda row: row["payment"], ",.1f"),
        ("θ", lambda row: row["conservation_rate"], ".2f"),
        ("largest gain / turnover", lambda row: row["gain"], ".1e"),
        ("overstatement of total volume, %", lambda row: 100 * row["overstated"], ".2f"),
        ("server cost above the optimum, %", lambda row: 100 * row["regret"], ".4f"),
    )
    return table("N", rows, columns)


def table(key: str, rows: Rows, columns: Sequence[Column]) -> str:
    """A Markdown table with one line per value; several draws are shown as a range."""
    lines = [[key, *(name for name, _, _ in columns)], ["---:"] * (1 + len(columns))]
    for value in dict.fromkeys(row["value"] for row in rows):
        group = [row for row in rows if row["value"] == value]
        cells = [span([get(row) for row in group], form) for _, get, form in columns]
        lines.append([f"{value:,}" if isinstance(value, int) else str(value), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def span(values: Iterable[float], form: str) -> str:
    """The range of the finite values; a dash if there are none."""
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return "–"
    low, high = f"{min(finite):{form}}", f"{max(finite):{form}}"
    return low if low == high else f"{low}–{high}"


def groups(rows: Rows, name: str) -> list[Array]:
    """One field of the rows: an array per value."""
    values = dict.fromkeys(row["value"] for row in rows)
    return [np.array([row[name] for row in rows if row["value"] == value]) for value in values]


def publish(figure: Figure, name: str) -> None:
    """Write a picture to docs/assets, with a reduced number of colours."""
    (DOCS / "assets").mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        png = save(figure, Path(folder), name)[0]
        screenshots.save(png.read_bytes(), png.name, COLOURS, Image.Quantize.MEDIANCUT)


def splice(name: str, text: str) -> None:
    """Insert a text between the markers of this name on all pages."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{begin}.*?{end}", re.DOTALL)
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        write_text(page, pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", before))


def rerun(page: Path) -> None:
    """Run the sessions of a page again."""
    before = page.read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        for name, text in _FILE.findall(before):
            (Path(folder) / name).write_text(text, encoding="utf-8")

        def again(session: re.Match[str]) -> str:
            commands = [line for line in session[1].splitlines() if line.startswith("$ ")]
            shown = (f"{line}\n{run(['bash', '-c', line[2:]], Path(folder))}" for line in commands)
            return f"```console\n{''.join(shown).replace(folder, '/home/me')}```"

        write_text(page, _SESSION.sub(again, before))


def run(command: Sequence[str], folder: Path = DOCS) -> str:
    """The output of a command, without colours and trailing spaces; its exit code is ignored."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


if __name__ == "__main__":
    main()
