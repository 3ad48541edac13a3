"""The report page says what the records say, whatever runs it is given."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dufl
from command_line import assert_sentence, told
from dufl.errors import InputError
from dufl.experiment.plan_directory import read_plan_arrays
from dufl.experiment.stored import Stored, group, read_runs
from dufl.report.planning import plannings
from dufl.report.results_section import summary_table
from dufl.report.training_report import Written, write_report
from loading import load
from reports import Page, make_run, make_runs, metrics, report
from results import reseal


def read_solution(stored: Stored) -> dufl.Plan:
    experiment = stored.run.experiment
    leader = experiment.leader
    return read_plan_arrays(stored.place.manifest, experiment.game, leader.method, leader.competition)


WITH, WITHOUT = "with data update", "without data update"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def written(runs: Path) -> Written:
    return write_report([runs])


@pytest.fixture(scope="module")
def page(written: Written) -> Page:
    return Page(written.path.read_text(encoding="utf-8"))


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    """A copy of a run, to do things to."""
    return Path(shutil.copytree(runs / "fedavg-dufl-0", tmp_path / "run"))


def both(runs: Path, policy: str, name: str) -> Any:
    return np.array([metrics(runs / f"fedavg-{policy}-{seed}", name) for seed in (0, 1)])


def test_the_differences_are_those_of_the_pairs(runs: Path, page: Page) -> None:
    found = page.table("Statistics over the seeds")
    heads = ["± std", "95 % interval", "difference", "95 % interval", "p (Holm)"]
    assert found.heads == ["runs", "seeds", "accuracy %", *heads]
    assert "Difference: to without data update" in found.caption
    assert "95 % intervals need at least 6 seeds" in found.caption
    fresh, static = (100 * both(runs, policy, "accuracy")[:, -1] for policy in ("dufl", "static"))
    difference = f"{np.mean(fresh - static):+.2f}".replace("-", "−")
    p = 0.5 if np.prod(fresh - static) > 0 else 1.0
    rows = {row[0]: row[1:] for row in found.rows}
    assert rows[WITH] == [
        *("2", f"{fresh.mean():.2f}", f"{fresh.std(ddof=1):.2f}", "–", difference, "–", f"{p:.3f}")
    ]
    assert rows[WITHOUT][3:] == ["–"] * 4


def test_the_summary_is_that_of_the_records(runs: Path, page: Page) -> None:
    found = page.table("± the standard deviation of the accuracy")
    heads = ["runs", "seeds", "accuracy (%)", "± std", "best (%)", "loss", "samples held", "mean age"]
    assert found.heads == [*heads, "payment", "cost U"]
    assert [row[0] for row in found.rows] == [WITH, WITHOUT]
    for policy, row in zip(("dufl", "static"), found.values, strict=True):
        accuracy = 100 * both(runs, policy, "accuracy")
        expected = [
            2,
            accuracy[:, -1].mean(),
            accuracy[:, -1].std(ddof=1),
            accuracy.max(axis=1).mean(),
            both(runs, policy, "loss")[:, -1].mean(),
            both(runs, policy, "total_volume").mean(),
            both(runs, policy, "mean_age").mean(),
            both(runs, policy, "payment").sum(axis=1).mean(),
            both(runs, policy, "server_cost")[:, -1].mean(),
        ]
        np.testing.assert_allclose(np.array(row[1:], float), expected, rtol=1e-12)
    final = [100 * both(runs, policy, "accuracy")[:, -1].mean() for policy in ("dufl", "static")]
    assert f"test accuracy is {final[0]:.1f} % after 6 rounds; without, {final[1]:.1f} %." in page.text


def test_a_single_seed_has_no_deviation(runs: Path) -> None:
    several = group(
        read_runs([runs / name for name in ("fedavg-dufl-0", "fedavg-dufl-1", "fedavg-static-0")])
    )
    finals = [metrics(runs / f"fedavg-dufl-{seed}", "accuracy")[-1] for seed in (0, 1)]
    assert several[0].summary["accuracy_std"] == pytest.approx(np.std(finals, ddof=1))
    assert several[1].summary["accuracy_std"] is None
    table = summary_table(several)
    assert [row[table.heads.index("± std")] == "–" for row in table.rows] == [False, True]
    alone = group(read_runs([runs / "fedavg-dufl-0"]))
    assert "± std" not in summary_table(alone).heads


@pytest.mark.parametrize(
    ("chart", "name", "scale", "suffix"),
    [
        ("accuracy", "accuracy", 100, ""),
        ("loss", "loss", 1, ""),
        ("cost_so_far", "server_cost", 1, ""),
        ("classes", "classes", 1, ""),
        ("volume", "total_volume", 1, ": measured"),
        ("staleness", "mean_age", 1, ": measured"),
    ],
)
def test_charts_over_rounds_are_those_of_the_records(
    runs: Path, page: Page, chart: str, name: str, scale: float, suffix: str
) -> None:
    columns = page.csv(chart)
    assert columns["round"] == list(range(6))
    for policy, label in (("dufl", WITH + suffix), ("static", WITHOUT + suffix)):
        each = scale * both(runs, policy, name)
        np.testing.assert_allclose(columns[label], each.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(columns[f"{label}, min"], each.min(axis=0), rtol=1e-12)
        np.testing.assert_allclose(columns[f"{label}, max"], each.max(axis=0), rtol=1e-12)


def test_every_chart_draws_what_its_csv_says(page: Page) -> None:
    assert set(page.charts) >= {"cost_by_term", "cost_surface", "collection", "payment", "utility"}
    for name, chart in page.charts.items():
        columns, seen = page.csv(name), 0
        for trace in chart["data"]:
            if trace["type"] in ("scatter", "bar") and trace.get("name") in columns:
                drawn = trace["x"] if trace.get("orientation") == "h" else trace["y"]
                if trace.get("showlegend", True):
                    np.testing.assert_allclose(np.array(drawn, float), columns[trace["name"]], rtol=1e-12)
                    seen += 1
        assert seen >= 2 or name == "cost_surface"
    costs = np.array(page.charts["cost_surface"]["data"][0]["customdata"], float)
    np.testing.assert_allclose(costs.T.ravel(), page.csv("cost_surface")["cost"])


def test_planned_is_what_the_solver_says(runs: Path, page: Page) -> None:
    config = load(runs / "fedavg-dufl-0" / "config.toml")
    plan = dufl.solve(config.game)
    np.testing.assert_allclose(page.csv("volume")[f"{WITH}: planned"], plan.total_volume, rtol=1e-9)
    np.testing.assert_allclose(page.csv("staleness")[f"{WITH}: planned"], plan.mean_staleness, rtol=1e-9)
    collected = plan.collection[:-1].sum(axis=1)
    np.testing.assert_allclose(page.csv("collection")[f"{WITH}: planned"], collected, rtol=1e-6)
    assert page.csv("collection")[f"{WITHOUT}: measured"] == [0] * 5
    paid, utility = page.csv("payment"), page.csv("utility")
    order = [int(client) for client in paid["client"]]
    assert sorted(order) == list(range(4))
    np.testing.assert_allclose(paid["planned"], plan.outcomes.payment[order], rtol=1e-6)
    np.testing.assert_allclose(utility["planned"], plan.outcomes.utility[order], rtol=1e-6)
    assert utility["planned"] == sorted(utility["planned"], reverse=True)
    saved = 100 * (1 - plan.server_cost / plan.no_update_cost)
    assert f"{saved:.1f} % less than {plan.no_update_cost:.3f} without update" in page.text
    assert f"The server pays R = {plan.payment:,.2f} per round" in page.text
    assert f"θ = {100 * plan.conservation_rate:.1f} %" in page.text


def test_clients_are_paid_all_that_is_paid(runs: Path, page: Page) -> None:
    paid = both(runs, "dufl", "payment").sum(axis=1).mean()
    assert sum(page.csv("payment")["measured"]) == pytest.approx(paid)
    table = page.table("Payment and utility per client")
    assert len(table.rows) == 4
    measured = [row[2] for row in table.values]
    np.testing.assert_allclose(np.array(measured, float), page.csv("payment")["measured"])
    for kept, paid_to in zip(page.csv("utility")["measured"], page.csv("payment")["measured"], strict=True):
        assert kept < paid_to


def test_measured_utility_is_payment_less_cost(run: Path, tmp_path: Path) -> None:
    """By hand, client by client and round by round."""
    found = report(run, out=tmp_path / "r.html").csv("utility")
    game = load(run / "config.toml").game
    rate = dufl.solve(game).conservation_rate
    volumes, payments = metrics(run, "volumes"), metrics(run, "payment")
    for client, said in zip(map(int, found["client"]), found["measured"], strict=True):
        left = 0.0
        for t, held in enumerate(volumes[:, client]):
            fresh = max(volumes[t + 1, client] - rate * held, 0) if t + 1 < len(volumes) else 0
            cost = game.clients.collection_cost[client] * fresh**2
            cost += game.clients.training_cost[client] * held**2
            left += payments[t] * held / volumes[t].sum() - cost
        assert said == pytest.approx(left)


def test_planned_against_measured(runs: Path, page: Page) -> None:
    table = page.table("planned and measured over 6 rounds")
    rows = {name.strip(): values for (name, *_), values in zip(table.rows, table.values, strict=True)}
    assert rows["server cost U"][2] == pytest.approx(both(runs, "dufl", "server_cost")[:, -1].mean())
    planned, measured, difference = (rows["samples held, mean over rounds"][i] for i in (1, 2, 3))
    assert planned
    assert measured
    assert difference == pytest.approx(100 * (measured / planned - 1), abs=0.006)


def test_the_page_needs_nobody_and_is_small(written: Written, page: Page) -> None:
    text = written.path.read_text(encoding="utf-8")
    assert written.size == written.path.stat().st_size < 5_000_000
    assert written.runs == 4
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert "default-src 'none'" in text
    assert (page.tags.count("h1"), page.tags.count("main"), page.tags.count("title")) == (1, 1, 1)
    assert all(image["alt"] for image in page.images)
    assert [row[0] for row in page.table("at different ages").rows] == ["fresh", "age 3", "age 6"]
    assert len(page.images) == 3


def test_the_same_runs_give_the_same_bytes(written: Written, runs: Path, tmp_path: Path) -> None:
    again = write_report([runs], tmp_path / "again.html").path.read_bytes()
    assert again == written.path.read_bytes()


def test_everything_is_told(runs: Path, page: Page) -> None:
    environment = json.loads((runs / "fedavg-dufl-0" / "environment.json").read_text())
    for words in (
        "num_rounds = 6",
        "dufl compare fedavg-dufl-0/config.toml --algorithms fedavg --policies dufl,static --seeds 2",
        environment["packages"]["numpy"],
        environment["processor"],
        json.loads((runs / "fedavg-static-1" / "summary.json").read_text())["fingerprint"],
    ):
        assert words in page.text
    assert str(runs) not in page.text


def test_the_command_it_names_makes_the_same_runs(dufl_command: Any, runs: Path, page: Page) -> None:
    line = next(line for line in page.text.splitlines() if line.startswith("dufl compare"))
    arguments = line.replace("fedavg-dufl-0/", f"{runs}/fedavg-dufl-0/").split()[1:-2]
    code, out, _ = dufl_command(*arguments, "--json")
    assert code == 0
    final = {cell["policy"]: cell["accuracies"] for cell in json.loads(out)["cells"]}
    for policy, found in final.items():
        assert found == both(runs, policy, "accuracy")[:, -1].tolist()


def test_the_plan_is_the_one_that_was_followed(run: Path, tmp_path: Path) -> None:
    with np.load(run / "plan.npz") as arrays:
        kept = dict(arrays)
    np.savez(run / "plan.npz", **kept | {"payment": np.array(12.345), "conservation_rate": np.array(0.5)})
    reseal(run)
    assert "The server pays R = 12.35 per round" in report(run, out=tmp_path / "r.html").text
    (run / "plan.npz").unlink()
    reseal(run)
    solved = f"R = {float(kept['payment']):,.2f} per round"
    assert solved in report(run, out=tmp_path / "r.html").text


def test_a_stored_plan_is_not_solved_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = read_runs([run])[0]
    solved = dufl.solve(stored.run.experiment.game)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("solved again")

    monkeypatch.setattr("dufl.game.plan.respond", refuse)
    plan = read_solution(stored)
    assert (plan.payment, plan.conservation_rate) == (solved.payment, solved.conservation_rate)
    assert (plan.method, plan.competition) == (solved.method, solved.competition)
    assert plan.converged
    assert plan.server_cost == solved.server_cost
    np.testing.assert_array_equal(plan.volume, solved.volume)
    monkeypatch.setattr("dufl.report.planning.baseline_of", lambda plan: None)
    (planning,) = plannings(group([stored]))
    assert planning.plan.payment == solved.payment


@pytest.mark.parametrize("name", ["total_volume", "announced_volume"])
@pytest.mark.parametrize("values", [np.ones(5), np.full(6, np.nan), np.full(6, -1.0), np.ones(6, np.int64)])
def test_a_stored_plan_must_be_one(run: Path, name: str, values: Any) -> None:
    with np.load(run / "plan.npz") as arrays:
        kept = dict(arrays)
    np.savez(run / "plan.npz", **kept | {name: values})
    reseal(run)
    stored = read_runs([run])[0]
    with pytest.raises(InputError) as refused:
        read_solution(stored)
    assert refused.value.field == f"{name} in {run / 'plan.npz'}"


def test_one_table_for_all_runs_of_a_plan(runs: Path, tmp_path: Path) -> None:
    """Two algorithms follow the same plan, and one of them was stopped."""
    shutil.copytree(runs / "fedavg-dufl-0", tmp_path / "all" / "one")
    make_run(tmp_path / "all" / "two", "algorithm=fedprox", stop=lambda rounds: rounds >= 4)
    table = report(tmp_path / "all", out=tmp_path / "r.html").table("planned and measured")
    assert "4 rounds" in table.caption
    measured = {name.strip(): row[2] for (name, *_), row in zip(table.rows, table.values, strict=True)}
    both = [metrics(tmp_path / "all" / name, "server_cost")[3] for name in ("one", "two")]
    assert measured["server cost U"] == pytest.approx(np.mean(both))
    terms = sum(measured[name] or 0 for name in ("payment", "insufficient data", "stale data"))
    assert terms == pytest.approx(measured["server cost U"])


def test_the_headline_is_of_the_best_method(runs: Path, tmp_path: Path) -> None:
    for policy in ("dufl", "static"):
        shutil.copytree(runs / f"fedavg-{policy}-0", tmp_path / "all" / policy)
        make_run(tmp_path / "all" / f"more-{policy}", "training.local_epochs=8", f"policy={policy}")
    finals = {name: metrics(tmp_path / "all" / name, "accuracy")[-1] for name in ("dufl", "more-dufl")}
    best = max(finals, key=lambda name: finals[name])
    page = report(tmp_path / "all", out=tmp_path / "r.html")
    epochs = 8 if best == "more-dufl" else 1
    assert f"(local_epochs = {epochs}), test accuracy is {100 * finals[best]:.1f} % after" in page.text


def test_a_negotiated_run_on_flower(run: Path, tmp_path: Path) -> None:
    deal: dict[str, Any] = {"payment": 20.0, "conservation_rate": 0.25, "first_round": 0, "phases": 5}
    deal |= {"residual": 0.0, "announced_volume": [500.0] * 6}
    (run / "deal.json").write_text(json.dumps(deal))
    page = report(run, out=tmp_path / "r.html")
    assert "R = 20.00 per round" in page.text
    assert "found by querying the clients" in page.text
    assert "dufl flower simulate config.toml --negotiate --out again" in page.text
    (run / "deal.json").write_text(json.dumps(deal | {"first_round": 3, "announced_volume": [500.0] * 3}))
    assert "last from round 3 on" in report(run, out=tmp_path / "r.html").text


def test_runs_that_stopped(runs: Path, tmp_path: Path) -> None:
    place = make_run(tmp_path / "all" / "stopped", "policy=static", stop=lambda rounds: rounds >= 3)
    page = report(place, out=tmp_path / "r.html")
    assert "Without data update, test accuracy is" in page.text
    assert "(stopped after 3 of 6 rounds)" in page.text
    assert page.csv("accuracy")["round"] == [0, 1, 2]
    shutil.copytree(runs / "fedavg-dufl-0", tmp_path / "all" / "done")
    late = Path(shutil.copytree(runs / "fedavg-dufl-1", tmp_path / "all" / "late"))
    (late / "metrics.jsonl").write_text("")
    (late / "summary.json").unlink()
    reseal(late)
    page = report(tmp_path / "all", out=tmp_path / "r.html")
    states = {row[0]: row[4] for row in page.table("All runs").rows}
    rounds = "stopped after {} of 6 rounds".format
    assert states == {"done": "finished", "late": rounds(0), "stopped": rounds(3)}
    assert set(page.csv("accuracy")) == {"round", WITH, f"{WITHOUT} (stopped after 3 of 6)"}


def test_a_run_of_one_round(tmp_path: Path) -> None:
    """Nothing has been collected yet."""
    page = report(make_run(tmp_path / "run", stop=lambda rounds: rounds >= 1), out=tmp_path / "r.html")
    assert page.csv("accuracy")["round"] == [0]
    assert "collection" not in page.charts


def test_runs_with_different_plans(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sigma = "game.time_sensitivity"
    other = make_run(tmp_path / "other", f"{sigma}=1.25")
    first = runs / "fedavg-dufl-0"
    page = report(first, other, out=tmp_path / "r.html")
    plans = page.table("The plans of these runs")
    at = plans.heads.index(sigma)
    assert [row[at] for row in plans.values] == [0.75, 1.25]
    assert {"plan_1_cost_surface", "plan_2_cost_surface", "plan_2_payment"} <= set(page.charts)
    told_apart = page.table("Settings that differ")
    assert (told_apart.heads, told_apart.rows[1][1]) == (["runs", sigma], "1.25")
    assert f"{WITH}, time_sensitivity = 1.25" in page.csv("accuracy")
    assert "dufl train config.toml --out again" in page.text
    monkeypatch.setattr("dufl.report.plan_section.SHOWN", 1)
    page = report(first, other, out=tmp_path / "r.html")
    assert "plan_1_cost_surface" not in page.charts
    assert len(page.table("The plans of these runs").rows) == 2


def test_names_that_mean_harm(runs: Path, tmp_path: Path) -> None:
    harm = "<script>alert(1)<&\"'>"
    place = Path(shutil.copytree(runs / "fedavg-dufl-0", tmp_path / harm))
    found = json.loads((place / "environment.json").read_text())
    found["processor"] = "</script><img src=x onerror=alert(2)>"
    (place / "environment.json").write_text(json.dumps(found))
    with (place / "config.toml").open("a") as stream:
        stream.write('# </code></pre><img src="http://nowhere.invalid/">\n')
    reseal(place)
    page = report(place, out=tmp_path / "r.html")
    assert page.table("All runs").rows[0][0] == harm
    assert all(image["src"] and image["src"].startswith("data:") for image in page.images)
    assert page.tags.count("script") == 4  # the theme, the data, Plotly, and the page's own


def test_many_rounds_and_many_clients(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dufl.report.run_charts.POINTS", 4)
    monkeypatch.setattr("dufl.report.clients_section.KEPT", 3)
    monkeypatch.setattr("dufl.report.plan_charts.EACH", 1)
    monkeypatch.setattr("dufl.report.clients_section.ROWS", 2)
    page = report(runs, out=tmp_path / "r.html")
    assert page.csv("accuracy")["round"] == [0, 3]
    accuracy = 100 * both(runs, "dufl", "accuracy").mean(axis=0)
    np.testing.assert_allclose(page.csv("accuracy")[WITH], accuracy[[0, 3]])
    assert sorted(page.csv("payment")["client"]) == [0, 2]
    table = page.table("Payment and utility per client over all rounds; 2 of 4 clients, evenly chosen")
    assert len(table.rows) == 2


def test_the_command(
    dufl_command: Any, runs: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert dufl_command("report", "run") == (0, "report: run/report.html\n", "")
    assert opened == []
    code, out, err = dufl_command("report", "run", str(runs / "fedavg-static-0"), "--json", "--open")
    assert (code, err) == (0, "")
    size = (tmp_path / "report.html").stat().st_size
    assert json.loads(out) == {"report": "report.html", "runs": 2, "bytes": size}
    assert opened == [(tmp_path / "report.html").as_uri()]
    assert dufl_command("report", "run", "run", "--out", "own.html") == (0, "report: own.html\n", "")
    assert len(Page((tmp_path / "own.html").read_text()).table("All runs").rows) == 1


def test_what_cannot_be_reported(dufl_command: Any, run: Path, tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        code, out, err = dufl_command("report", *arguments)
        assert (code, out) == (2, "")
        assert_sentence(err)
        return str(err)

    rule = "RUN_DIR must be a run directory, or a folder with run directories in it, got"
    assert f"{rule} {tmp_path / 'nothing'}" in refused(str(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    assert f"{rule} {tmp_path / 'empty'}" in refused(str(run), str(tmp_path / "empty"))
    there = str(tmp_path / "empty")
    assert f"--out: {there} must be a regular file, got a directory" in refused(str(run), "--out", there)
    assert "--out must be a file in a folder" in refused(str(run), "--out", f"{there}/deep/r.html")
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", "{}\n{}\n"),
        ("metrics.jsonl", ""),
        ("config.toml", "[game"),
        ("environment.json", "{"),
        ("environment.json", "[1]"),
        ("plan.npz", "no zip"),
        ("summary.json", "{"),
        ("deal.json", "{}"),
    ],
)
def test_damaged_runs_are_refused(dufl_command: Any, run: Path, name: str, content: str) -> None:
    (run / name).write_text(content)
    before = sorted(run.iterdir())
    code, _, err = dufl_command("report", str(run))
    assert code == 2
    assert_sentence(err)
    assert str(run) in err
    assert sorted(run.iterdir()) == before


def test_train_and_compare_end_with_it(dufl_command: Any, tmp_path: Path) -> None:
    small = told("game.num_rounds=3", "clients.count=3", "training.local_epochs=1")
    code, out, _ = dufl_command("train", *small, "--out", str(tmp_path / "one"))
    assert (code, out.splitlines()[-1]) == (0, f"report: {tmp_path / 'one' / 'report.html'}")
    code, out, _ = dufl_command("compare", *small, "--out", str(tmp_path / "two"))
    assert (code, out.splitlines()[-1]) == (0, f"report: {tmp_path / 'two' / 'report.html'}")
    for name, number in (("one", 1), ("two", 2)):
        page = Page((tmp_path / name / "report.html").read_text(encoding="utf-8"))
        assert len(page.table("All runs").rows) == number
