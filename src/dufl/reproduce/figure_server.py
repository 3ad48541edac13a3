"""Figure 4: accuracy and the server's cost over the rounds, for (R, θ)* and six deviations from it."""

from pathlib import Path

import numpy as np

from dufl.experiment.config import Changes, Experiment
from dufl.experiment.train import Run
from dufl.game.parameters import Game
from dufl.game.plan import equilibrium, solve
from dufl.report.figures import BLUE, GREEN, GREY, ORANGE, RED, new_figure, save, style
from dufl.reproduce.figure_updates import PAYMENTS, RATES, offers
from dufl.reproduce.item import NO_CHANGES, Advance, Finding, Item, Scale, settings_of, write_rows
from dufl.reproduce.runs import on, seconds_of, train_all

STACKELBERG = "stackelberg"
FIXED = ("game.payment_range", "game.conservation_range")  # keys that the item itself sets
NOISES = (0.5, 4.0, 16.0)


def reproduce(scale: Scale, out: Path, advance: Advance, changes: Changes = NO_CHANGES) -> Item:
    """Train with each of the seven offers and with the offer of the Stackelberg leader."""
    base = Experiment.from_toml(changes={**on(scale.images, scale.local_epochs), **changes})
    best = solve(base.game)
    wanted = offers(base.game) | {STACKELBERG: (best.payment, best.conservation_rate)}
    names = {offer: f"R={payment:.2f}-theta={rate:.2f}" for offer, (payment, rate) in wanted.items()}
    configs = {names[offer]: config_of(scale, *wanted[offer], changes) for offer in wanted}
    trained = train_all(configs, out / "server", lambda share, now="": advance(0.9 * share, now))
    runs = {offer: trained[name] for offer, name in names.items()}
    rows = [
        {"offer": name, "payment": wanted[name][0], "conservation_rate": wanted[name][1]}
        | {"round": r.round, "accuracy": r.accuracy, "server_cost": r.server_cost}
        for name, run in runs.items()
        for r in run.records
    ]
    settings = {
        "dataset": base.data.dataset,
        "model": base.training.model,
        **settings_of(base.game),
        "samples at the start": int(base.game.clients.initial_volume.max()),
        "epochs": base.training.local_epochs,
        "batch": base.training.batch_size,
        "learning rate": base.training.learning_rate,
        "momentum": base.training.momentum,
        "σ": base.game.time_sensitivity,
        "(R, θ)*": f"({wanted['*'][0]:.2f}, {wanted['*'][1]:.2f})",
        "the paper's (R, θ)*": "(63.18, 0.52)",
    }
    written = [write_rows(out / "server.csv", rows), *_draw(runs, out)]
    accuracy = {name: 100 * late(run) for name, run in runs.items()}
    cost = {name: run.records[-1].server_cost for name, run in runs.items()}
    notes = [cost_note(base.game, wanted["*"][0]), ageing_note(scale, out, wanted, advance, changes)]
    files = [path.name for path in written]
    seconds = seconds_of(runs.values())
    return Item("server", judge(accuracy, cost), settings, files, notes, seconds=seconds)


def config_of(scale: Scale, payment: float, rate: float, changes: Changes) -> Experiment:
    """The paper's setting with a fixed offer."""
    setting = {**on(scale.images, scale.local_epochs), **changes}
    return Experiment.from_toml(changes=setting).fixed(payment, rate)


def cost_note(game: Game, payment: float) -> str:
    """An experiment on the lowest cost: the θ with the lowest cost if the clients respond to it."""
    rates = np.linspace(0, 1, 51)
    costs = [equilibrium(game, payment=payment, conservation_rate=rate).server_cost for rate in rates]
    least = int(np.argmin(costs))
    return (
        f"Where is the cost lowest at R* = {payment:.2f}, with the clients' true responses to every θ? At "
        f"θ = {rates[least]:.2f}, in the model alone and without any training. Algorithm 1 chooses θ with φ "
        "held fixed: it does not see that clients collect less when more is kept, and keeps too much."
    )


def ageing_note(
    scale: Scale, out: Path, wanted: dict[str, tuple[float, float]], advance: Advance, changes: Changes
) -> str:
    """An experiment on a θ that is too large: how fast samples must age for it to reduce accuracy."""
    names = [f"θ = {RATES[0]}", "*", *(f"θ = {rate}" for rate in RATES[1:])]
    configs = {
        f"noise={noise:g}-{number}": Experiment.from_toml(
            changes={
                **on(scale.leaders, scale.local_epochs),
                **changes,
                "training.model": "logistic",
                "data.noise_scale": noise,
            }
        ).fixed(*wanted[name])
        for noise in NOISES
        for number, name in enumerate(names)
    }
    folder = out / "server-ageing"
    runs = train_all(configs, folder, lambda share, now="": advance(0.9 + 0.1 * share, now))
    dataset = next(iter(configs.values())).data.dataset
    results = "; ".join(
        f"{noise:g}: " + ", ".join(f"{100 * late(runs[f'noise={noise:g}-{k}']):.1f} %" for k in range(4))
        for noise in NOISES
    )
    return (
        "When does a large θ make the model worse? A large θ gives more data, and older data. How much age "
        "hurts depends on `data.noise_scale`, which the paper does not state. Accuracy of logistic "
        f"regression on {dataset} at θ = {RATES[0]}, θ*, {RATES[1]} and {RATES[2]}, by `noise_scale` "
        f"(0.5 reproduces Table 1): {results}."
    )


def late(run: Run) -> float:
    """The mean accuracy over the last tenth of the rounds, which varies less than that of the last round."""
    return float(np.mean([record.accuracy for record in run.records[-max(1, len(run.records) // 10) :]]))


def judge(accuracy: dict[str, float], cost: dict[str, float]) -> list[Finding]:
    """The paper's claims about these curves, checked."""
    others = {name: value for name, value in cost.items() if name not in ("*", STACKELBERG)}
    rich = [accuracy[f"R = {payment}"] for payment in PAYMENTS[1:]]
    rates = [accuracy[f"θ = {rate}"] for rate in RATES]
    least = min(others, key=lambda name: others[name])
    return [
        Finding(
            "the server's cost is lowest at (R, θ)*",
            cost["*"] < others[least],
            f"{cost['*']:.3f} there, {others[least]:.3f} at {least}",
        ),
        Finding(
            "a higher payment gives a higher accuracy",
            accuracy[f"R = {PAYMENTS[0]}"] < accuracy["*"] < min(rich),
            f"{accuracy[f'R = {PAYMENTS[0]}']:.1f} %, {accuracy['*']:.1f} % at R*, "
            + ", ".join(f"{value:.1f} %" for value in rich),
        ),
        Finding(
            "a θ that is too small or too large gives a lower accuracy",
            accuracy["*"] > max(rates),
            f"{accuracy['*']:.1f} % at θ*, "
            + ", ".join(f"{value:.1f} % at {rate}" for rate, value in zip(RATES, rates, strict=True)),
        ),
        Finding(
            "a leader that anticipates the clients costs less than any of them (not in the paper)",
            cost[STACKELBERG] < min(cost["*"], *others.values()),
            f"{cost[STACKELBERG]:.3f}, with {accuracy[STACKELBERG]:.1f} % accuracy",
        ),
    ]


def _draw(runs: dict[str, Run], out: Path) -> list[Path]:
    groups = (("*", *(f"θ = {rate}" for rate in RATES)), ("*", *(f"R = {payment}" for payment in PAYMENTS)))
    with style():
        figure, axes = new_figure(9.0, 5.8, nrows=2, ncols=2)
        for column, group in enumerate(groups):
            for offer, colour in zip(group, (BLUE, ORANGE, GREEN, RED), strict=True):
                line, label = ("-", "(R, θ)*") if offer == "*" else ("--", offer)
                records = runs[offer].records
                accuracy = [100 * record.accuracy for record in records]
                axes[0][column].plot(accuracy, line, color=colour, label=label)
                axes[1][column].plot([record.server_cost for record in records], line, color=colour)
            records = runs[STACKELBERG].records
            dotted = {"color": GREY, "linestyle": ":"}
            axes[0][column].plot([100 * r.accuracy for r in records], label=STACKELBERG, **dotted)
            axes[1][column].plot([r.server_cost for r in records], **dotted)
            axes[0][column].set(title="Test accuracy", ylabel="%")
            axes[1][column].set(title="Server cost so far", xlabel="round")
            axes[0][column].legend(loc="lower right")
        return save(figure, out, "server")
