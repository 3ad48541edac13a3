"""The table of `dufl calibrate gradients`."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dufl.calibration.gradient_noise import GradientNoise


def gradient_table(noise: GradientNoise) -> Group:
    """The verdict, the constants, their values at every point, and the snippet for `[game]`."""
    points = Table(title="By point of the training", title_justify="left")
    for head in ("after round", "ψ", "σ", "R²", "β"):
        points.add_column(head, justify="right")
    betas = {curvature.round: curvature.beta for curvature in noise.curvature}
    for row in noise.by_round():
        points.add_row(
            f"{row['round']:.0f}",
            f"{row['psi']:.3g}",
            f"{row['sigma']:.3g}",
            f"{row['r2']:.3f}",
            f"{betas[int(row['round'])]:.3g}",
        )
    return Group(noise.verdict, _constants(noise), points, Text("\n" + noise.snippet.rstrip()))


def _constants(noise: GradientNoise) -> Table:
    table = Table(title="Constants of the convergence bound", title_justify="left")
    for head in ("constant", "value", "90 % interval"):
        table.add_column(head, justify="left" if head == "constant" else "right")
    for name, value, interval in (
        ("sampling noise ψ", noise.psi, noise.intervals["psi"]),
        ("time sensitivity σ", noise.sigma, noise.intervals["sigma"]),
    ):
        table.add_row(name, f"{value:.4g}", f"{interval[0]:.4g} to {interval[1]:.4g}")
    table.add_row("strong convexity μ", f"{noise.mu:.3g}", "")
    table.add_row("smoothness β", f"{noise.beta:.4g}", "")
    table.add_row("learning rate η", f"{noise.learning_rate:g}", "")
    for name, weight in zip(("κ1", "κ2", "κ3"), (noise.weights or {}).values(), strict=False):
        table.add_row(name, f"{weight:.7g}", "")
    table.add_row("weight of S relative to N/D", f"{noise.ratio:.3g}", "")
    return table
