"""The keys of a configuration, their symbols in the papers, and suggestions for unknown keys."""

import unicodedata
from collections.abc import Iterable, Sequence

from dufl.errors import InputError, shown
from dufl.experiment.sections import ClientsSection, Data, Leader
from dufl.experiment.service import Service
from dufl.game.parameters import Game
from dufl.inputs import nearest, unknown_key
from dufl.learning.settings import Training

ROOT = ""  # the section of the top-level keys

KEYS: dict[str, Sequence[str]] = {
    ROOT: ["policy", "baseline_payment"],
    "game": [
        *(name for name in Game.model_fields if name != "clients"),
        *("strong_convexity", "smoothness", "learning_rate"),
    ],
    "clients": list(ClientsSection.model_fields),
    "leader": list(Leader.model_fields),
    "data": list(Data.model_fields),
    "training": list(Training.model_fields),
    "service": list(Service.model_fields),
}

# Other names of a key: first its symbol in a paper, if any, then alternative names.
SYMBOLS: dict[str, tuple[str, ...]] = {
    "game.num_rounds": ("T", "rounds", "n_rounds", "num_global_rounds"),
    "game.time_sensitivity": ("σ", "sigma"),
    "game.sampling_noise": ("ψ", "psi"),
    "game.payment_weight": ("γ", "gamma"),
    "game.decay": ("κ1", "kappa1"),
    "game.volume_weight": ("κ2", "kappa2"),
    "game.staleness_weight": ("κ3", "kappa3"),
    "game.strong_convexity": ("μ", "mu"),
    "game.smoothness": ("β", "beta"),
    "game.learning_rate": ("η", "eta"),
    "game.payment_range": ("R", "payment", "reward"),
    "game.conservation_range": ("θ", "theta", "conservation_rate"),
    "clients.count": ("N", "clients", "num_clients", "n_clients"),
    "clients.initial_volume": ("D", "D0", "volume", "samples", "num_samples"),
    "clients.collection_cost": ("α", "alpha"),
    "clients.training_cost": ("β", "beta"),
    "clients.initial_staleness": ("S", "S0", "staleness"),
    "clients.capacity": ("", "storage", "buffer_size"),
    "leader.method": ("", "leader"),
    "data.dirichlet_alpha": ("", "skew", "heterogeneity"),
    "training.proximal_mu": ("μ", "mu", "proximal_weight"),
    "training.feddyn_alpha": ("α", "alpha", "dynamic_weight"),
    "training.learning_rate": ("η", "eta", "lr"),
    "training.learning_rate_decay": ("", "lr_decay", "schedule"),
    "training.weight_decay": ("λ", "l2"),
    "training.augmentation": ("", "augment", "crop", "flip"),
    "training.local_epochs": ("E", "epochs", "num_epochs"),
    "training.batch_size": ("B", "batch", "batchsize"),
    "training.age_scale": ("H", "half_life", "age_half_life"),
    "training.fraction_train": ("C", "fraction_fit", "client_fraction"),
    "training.client_dropout": ("", "dropout"),
}


def split_key(key: str) -> tuple[str, str]:
    """The section and the name of a key. The section may be omitted if the name is unique.

    >>> split_key("game.num_rounds"), split_key("num_rounds"), split_key("policy")
    (('game', 'num_rounds'), ('game', 'num_rounds'), ('', 'policy'))
    """
    section, dot, name = key.strip().partition(".")
    return (section, name) if dot else (_section_of(section), section)


def _section_of(name: str) -> str:
    sections = [section for section, known in KEYS.items() if name in known]
    if len(sections) == 1:
        return sections[0]
    if sections:
        rule = f"one of {', '.join(f'{s}.{name}' for s in sections)}"
        raise InputError.of("changes", rule, name)
    raise InputError(unknown(name), field=name)


def check_keys(table: dict[str, object]) -> None:
    """Raise an error for unknown sections and keys."""
    sections = {section: known for section, known in KEYS.items() if section != ROOT}
    for section, values in table.items():
        if section in KEYS[ROOT]:
            continue
        if section not in sections and not isinstance(values, dict):
            raise InputError(unknown(section), field=section)
        if section not in sections:
            raise InputError(unknown_key(section, sections, " (a section)"), field=section)
        if not isinstance(values, dict):
            raise InputError.of(section, "a section", values, text=shown(values))
        for key in values:
            if key not in KEYS[section]:
                raise InputError(unknown(key, section), field=f"{section}.{key}")


def unknown(key: str, section: str = "") -> str:
    """The message for an unknown key. It suggests the key that was probably meant.

    >>> unknown("sigma")
    "unknown key 'sigma': did you mean 'game.time_sensitivity' (σ)?"
    >>> unknown("num_round", "game")
    "unknown key 'num_round' in [game]: did you mean 'num_rounds'?"
    >>> unknown("epochs", "game")
    "unknown key 'epochs' in [game]: did you mean 'training.local_epochs' (E)?"
    """
    where = f" in [{section}]" if section else ""
    if section and key in KEYS[ROOT]:
        return f"unknown key {shown(key)}{where}: it belongs to the top of the file, above all sections"
    near = nearest(key, KEYS[section]) if section else ""
    meant = (
        _by_symbol(key, section)
        or _named(key)
        or ([near] if near else [])
        or _named(nearest(key, _names(), 0.7 if section else 0.5))
    )
    advice = _advice(meant) or "`dufl init` writes a file that describes every key"
    return f"unknown key {shown(key)}{where}: {advice}"


def _names() -> list[str]:
    return [name for known in KEYS.values() for name in known]


def _by_symbol(key: str, section: str) -> list[str]:
    """The keys with this symbol or alternative name; only those of the section, if there are any."""
    wanted = _normal(key)
    meant = [k for k, names in SYMBOLS.items() if wanted and wanted in map(_normal, names)]
    return [k for k in meant if k.startswith(f"{section}.")] or meant


def _normal(name: str) -> str:
    """A name without variations in spelling: case, κ₁ or kappa_1, α_k, D(0)."""
    plain = unicodedata.normalize("NFKC", name[:100]).casefold().strip()
    for ending in ("(0)", "(t)", "_k"):
        plain = plain.removesuffix(ending)
    return plain.replace("_", "").replace("-", "").replace(" ", "")


def _named(name: str) -> list[str]:
    return [f"{section}.{name}".lstrip(".") for section, known in KEYS.items() if name in known]


def _advice(keys: Iterable[str]) -> str:
    named = [f"{key!r}{_symbol(key)}" for key in keys]
    if not named:
        return ""
    before, last = ", ".join(named[:-1]), named[-1]
    return f"did you mean {before} or {last}?" if before else f"did you mean {last}?"


def _symbol(key: str) -> str:
    symbol = SYMBOLS.get(key, ("",))[0]
    return f" ({symbol})" if symbol else ""
