"""The configuration file: what it accepts, how it refuses, and that nothing breaks the parser."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

import dufl
from dufl import Clients, Game, InputError, LogNormal, Uniform
from dufl.cli.init import EXAMPLE
from dufl.experiment import keys
from dufl.experiment.config import Experiment
from loading import load


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "federation.toml"
    path.write_text(text)
    return path


def same(one: Game, two: Game) -> bool:
    scalars = all(getattr(one, n) == getattr(two, n) for n in Game.model_fields if n != "clients")
    columns = ("initial_volume", "collection_cost", "training_cost", "initial_staleness", "capacity")
    return scalars and all(np.array_equal(getattr(one.clients, n), getattr(two.clients, n)) for n in columns)


def test_no_file_is_the_paper_s_default() -> None:
    assert same(load().game, Game())
    assert load().leader.method == "stackelberg"


def test_the_example_file_is_the_default(tmp_path: Path) -> None:
    assert same(load(write(tmp_path, EXAMPLE)).game, Game())
    example = load(write(tmp_path, EXAMPLE))
    assert (example.leader, example.data, example.training) == (load().leader, load().data, load().training)


def test_every_key_of_the_example_is_known_and_every_known_key_is_in_it() -> None:
    keys = {line.strip("# ").partition("=")[0].strip() for line in EXAMPLE.splitlines() if "=" in line}
    config = load()
    for section in (config.game, config.clients, config.leader, config.data, config.training):
        for name in type(section).model_fields:
            assert name == "clients" or name in keys, name


def test_columns_from_numbers_lists_and_distributions(tmp_path: Path) -> None:
    text = """
    [clients]
    count = 3
    seed = 7
    initial_volume = [1, 2.5, 3]
    collection_cost = { low = 1e-4, high = 1e-3, scale = "log" }
    training_cost = { median = 1e-5, spread = 0.5 }
    initial_staleness = 2
    capacity = 1e6
    """
    clients = load(write(tmp_path, text)).game.clients
    expected = Clients.draw(
        3,
        7,
        initial_volume=[1, 2.5, 3],
        collection_cost=Uniform(low=1e-4, high=1e-3, scale="log"),
        training_cost=LogNormal(median=1e-5, spread=0.5),
        initial_staleness=2.0,
        capacity=1e6,
    )
    assert same(Game(clients=clients), Game(clients=expected))
    assert ((clients.collection_cost >= 1e-4) & (clients.collection_cost <= 1e-3)).all()


def test_clients_from_a_csv_file_beside_the_configuration(tmp_path: Path) -> None:
    lines = ["initial_volume,collection_cost,training_cost,capacity", "10,1e-3,1e-5,50", "20, 2e-3 ,0,"]
    (tmp_path / "clients.csv").write_text("\n".join(lines))
    clients = load(write(tmp_path, '[clients]\nfile = "clients.csv"')).game.clients
    assert clients.initial_volume.tolist() == [10, 20]
    assert clients.training_cost.tolist() == [1e-5, 0]
    assert clients.capacity.tolist() == [50, np.inf]
    assert clients.initial_staleness.tolist() == [1, 1]


def test_csv_round_trip(tmp_path: Path) -> None:
    clients = Clients.draw(20, 3, capacity=Uniform(low=1e5, high=1e6))
    (tmp_path / "c.csv").write_text(clients.to_csv())
    assert same(Game(clients=clients), Game(clients=Clients.from_csv(tmp_path / "c.csv")))


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["game.num_rounds=7", "clients.count=3", "leader.method=algorithm1", "leader.search=direct"],
        ["strong_convexity=0.5", "smoothness=2", "game.learning_rate=0.1"],
        ["clients.initial_volume=[1,2]", "clients.count=2", "capacity={low=500,high=1000}"],
    ],
)
def test_the_resolved_file_says_the_same(tmp_path: Path, changes: list[str]) -> None:
    one = load(None, changes)
    two = load(write(tmp_path, one.to_toml()))
    assert same(one.game, two.game)
    assert one.leader == two.leader
    assert (one.data, one.training) == (two.data, two.training)


def test_changes_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[game]\nnum_rounds = 5\ntime_sensitivity = 1.0")
    config = load(path, ["game.num_rounds=9", "payment_range=[1, 2]", "method=algorithm1"])
    assert (config.game.num_rounds, config.game.time_sensitivity) == (9, 1.0)
    assert config.game.payment_range == (1.0, 2.0)
    assert config.leader.method == "algorithm1"


BAD: list[tuple[str, str]] = [
    ("[game]\nconservation_range = [0, 1.3]", "conservation_range must be [low, high] with 0 <= low"),
    ("[game]\nconservation_range = [-0.1, 1]", "conservation_range must be"),
    ("[game]\npayment_range = [9, 3]", "payment_range must be [low, high] with 0 <= low <= high, got"),
    ("[game]\npayment_range = [-1, 3]", "payment_range must be"),
    ("[game]\npayment_range = [1]", "payment_range must be a pair [low, high]"),
    ("[game]\npayment_range = [1, 2, 3]", "payment_range must be a pair [low, high]"),
    ("[game]\npayment_range = 5", "payment_range must be a pair [low, high], got 5"),
    ("[game]\nnum_rounds = 1", "num_rounds must be >= 2, got 1"),
    ("[game]\nnum_rounds = 2.5", "num_rounds must be an integer, got 2.5"),
    ("[game]\nnum_rounds = true", "num_rounds must be an integer, got True"),
    ('[game]\ntime_sensitivity = "high"', "time_sensitivity must be a number, got 'high'"),
    ("[game]\ntime_sensitivity = nan", "time_sensitivity must be a finite number, got nan"),
    ("[game]\npayment_weight = 2", "payment_weight must be in [0, 1], got 2"),
    ("[game]\ndecay = 0", "decay must be > 0, got 0"),
    ("[game]\ndecay = 1.5", "decay must be in (0, 1], got 1.5"),
    ("[game]\nnum_round = 3", "unknown key 'num_round' in [game]: did you mean 'num_rounds'?"),
    ("[gane]\nnum_rounds = 3", "unknown key 'gane' (a section): did you mean 'game'?"),
    ("game = 3", "game must be a section, got 3"),
    ("[clients]\ncollection_cost = 0", "collection_cost must be > 0, got 0 for client 0"),
    ("[clients]\ncollection_cost = -1e-4", "collection_cost must be > 0, got -0.0001"),
    ("[clients]\ntraining_cost = -1", "training_cost must be >= 0, got -1"),
    ("[clients]\ninitial_volume = -5", "initial_volume must be >= 0, got -5"),
    ("[clients]\ninitial_volume = nan", "initial_volume must be a finite number, got nan"),
    ("[clients]\ninitial_volume = inf", "initial_volume must be a finite number, got inf"),
    ("[clients]\ninitial_volume = 0", "initial_volume must be > 0 for at least one client"),
    ("[clients]\ninitial_volume = [1, 2]", "initial_volume must be one number or a list of 15"),
    ("[clients]\ninitial_volume = 'much'", "initial_volume must be a number, a list of numbers"),
    ("[clients]\ninitial_volume = [1, 'x']", "initial_volume must be a number, a list of numbers"),
    ("[clients]\ninitial_volume = {low = 3, high = 1}", "initial_volume.low must be <= high"),
    ("[clients]\ninitial_volume = {lo = 3, high = 1}", "unknown key 'lo': did you mean 'low'?"),
    ("[clients]\ninitial_volume = {low = 3}", "initial_volume.high must be given"),
    ("[clients]\ninitial_volume = {median = 0, spread = 1}", "initial_volume.median must be > 0"),
    ("[clients]\ninitial_staleness = 0.5", "initial_staleness must be >= 1, got 0.5"),
    ("[clients]\ncapacity = 0", "capacity must be > 0, got 0"),
    ("[clients]\ncount = 0", "count must be >= 1, got 0"),
    ("[clients]\ncount = 2.5", "count must be an integer, got 2.5"),
    ("[clients]\nseed = -1", "seed must be >= 0, got -1"),
    ("[clients]\nfile = 'none.csv'", "none.csv must be a readable CSV file"),
    ("[clients]\nfile = 'bad.csv'\ncount = 3", "count must be left out when file is given"),
    (
        "[clients]\nfile = 'missing.csv'",
        "must have a column training_cost, got initial_volume, collection_cost",
    ),
    ("[clients]\nfile = 'text.csv'", "text.csv line 3: collection_cost must be a number, got 'dear'"),
    ("[clients]\nfile = 'empty.csv'", "must have a header and at least one client"),
    ("[clients]\nfile = 'short.csv'", "short.csv line 2 must have 3 cells, got 2"),
    ("[clients]\nfile = 'extra.csv'", "must have no column but"),
    ("[clients]\nfile = 'negative.csv'", "collection_cost must be > 0, got -1 for client 1"),
    ("[leader]\nmethod = 'oracle'", "method must be one of 'stackelberg' or 'algorithm1', got 'oracle'"),
    ("[leader]\ncompetition = 'none'", "competition must be one of 'mean-field' or 'nash'"),
    ("[leader]\nevaluations = 0", "evaluations must be >= 1, got 0"),
    (
        "[leader]\ncompetition = 'nash'\n[clients]\ncount = 1",
        "competition must be 'mean-field' with a single",
    ),
    ("", "must not be empty"),
    ("[game", "must be valid TOML"),
]
FILES = {
    "missing.csv": "initial_volume,collection_cost\n1,2\n",
    "text.csv": "initial_volume,collection_cost,training_cost\n1,2,3\n1,dear,3\n",
    "empty.csv": "",
    "short.csv": "initial_volume,collection_cost,training_cost\n1,2\n",
    "extra.csv": "initial_volume,collection_cost,training_cost,colour\n1,2,3,4\n",
    "negative.csv": "initial_volume,collection_cost,training_cost\n1,2,3\n1,-1,3\n",
}


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input_gets_one_clear_sentence(tmp_path: Path, text: str, message: str) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        load(write(tmp_path, text))
    assert message in str(caught.value)
    assert "clients./" not in str(caught.value)  # the path of a CSV file is not the name of a key
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("num_rounds", "--set must be section.key=value, got 'num_rounds'"),
        ("seed=3", "changes must be one of clients.seed, leader.seed, training.seed, got seed"),
        ("num_rouds=3", "unknown key 'num_rouds': did you mean 'game.num_rounds' (T)?"),
        ("game.sigma=3", "unknown key 'sigma' in [game]: did you mean 'game.time_sensitivity' (σ)?"),
        ("game.epochs=3", "unknown key 'epochs' in [game]: did you mean 'training.local_epochs' (E)?"),
        ("training.epoch=3", "unknown key 'epoch' in [training]: did you mean 'local_epochs'?"),
        ("data.rounds=3", "unknown key 'rounds' in [data]: did you mean 'game.num_rounds' (T)?"),
        ("seeds=3", "did you mean 'clients.seed', 'leader.seed' or 'training.seed'?"),
        ("wxyz=3", "unknown key 'wxyz': `dufl init` writes a file that describes every key"),
        ("game.wxyz=3", "unknown key 'wxyz' in [game]: `dufl init` writes a file that describes every key"),
        ("gane.num_rounds=3", "unknown key 'gane' (a section): did you mean 'game'?"),
        ("=3", "unknown key ''"),
        ("no equals " + 5000 * "x", "--set must be section.key=value, got 'no equals xxx"),
        (5000 * "x" + "=1", "(5,002 characters)"),
        (f"num_rounds={'9' * 5000}", "game.num_rounds must be an integer, got '9999"),
        (f"num_rounds=1{'0' * 400}", "game.num_rounds must be an integer of at most 64 bits, got 1000"),
        (f"training.seed=0x{'f' * 5000}", "training.seed must be an integer of at most 64 bits, got a value"),
        (f"clients.count={2**63}", "clients.count must be an integer of at most 64 bits, got 92233720"),
        (f"initial_volume=[1{'0' * 400}]", "clients.initial_volume must be an integer of at most 64 bits"),
        (f"num_rounds={'[' * 3000}{']' * 3000}", "game.num_rounds must not nest lists and tables"),
        (f"num_rounds={'[' * 30}1{']' * 30}", "game.num_rounds must not nest lists and tables"),
        (f"num_rounds={'{a=' * 3000}1{'}' * 3000}", "game.num_rounds must not nest lists and tables"),
        ('data_dir="\\u0000"', "data.data_dir must be a string without NUL"),
        ('clients.file="\\u0000"', "clients.file must be a string without NUL"),
        ("data_dir=\udcff", "data.data_dir must be a string without NUL or surrogates, got '\\udcff'"),
        ("num_rounds=5\n[game]\nnum_rounds=6", "num_rounds must be an integer, got '5\\n[game]"),
    ],
    ids=lambda text: text[:40].encode("ascii", "replace").decode(),
)
def test_bad_changes(change: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(None, [change])
    assert message in str(caught.value)
    assert len(str(caught.value)) < 250


LETTERS = {
    "game.num_rounds": ["T", "t", "rounds"],
    "game.time_sensitivity": ["σ", "Σ", "sigma", "Sigma"],
    "game.sampling_noise": ["ψ", "psi"],
    "game.payment_weight": ["γ", "gamma"],
    "game.decay": ["κ1", "κ₁", "kappa1", "kappa_1"],
    "game.volume_weight": ["κ2", "kappa2"],
    "game.staleness_weight": ["κ3", "kappa3"],
    "game.strong_convexity": ["μ", "µ", "mu"],
    "game.smoothness": ["β", "beta"],
    "game.learning_rate": ["η", "eta"],
    "game.payment_range": ["R", "payment"],
    "game.conservation_range": ["θ", "theta", "conservation_rate"],
    "clients.count": ["N", "n", "clients", "num_clients"],
    "clients.initial_volume": ["D", "D(0)", "D_k"],
    "clients.collection_cost": ["α", "α_k", "alpha"],
    "clients.training_cost": ["β_k", "beta"],
    "clients.initial_staleness": ["S"],
    "training.proximal_mu": ["μ", "mu"],
    "training.feddyn_alpha": ["α", "alpha"],
    "training.learning_rate": ["η", "lr"],
    "training.batch_size": ["batch"],
    "training.local_epochs": ["epochs"],
}


@pytest.mark.parametrize(("letter", "key"), [(name, key) for key, names in LETTERS.items() for name in names])
def test_the_letters_of_the_paper_lead_to_their_keys(tmp_path: Path, letter: str, key: str) -> None:
    quoted, own = json.dumps(letter, ensure_ascii=False), key.partition(".")[0]
    texts = [f"{quoted} = 0.5", f"[data]\n{quoted} = 0.5", f"[{own}]\n{quoted} = 0.5"]
    files = [write(tmp_path / str(number), text) for number, text in enumerate(texts)]
    asked = [(None, [f"{letter}=0.5"]), (None, [f"{own}.{letter}=0.5"]), *((file, []) for file in files)]
    for path, changes in asked if letter != own else asked[:2]:
        with pytest.raises(InputError) as caught:
            load(path, changes)
        assert f"'{key}'" in str(caught.value)
        assert repr(letter) in str(caught.value)


def test_every_letter_leads_to_a_key_that_exists() -> None:
    for key in keys.SYMBOLS:
        section, _, name = key.partition(".")
        assert name in keys.KEYS[section]
    every = {name for known in keys.KEYS.values() for name in known}
    assert every >= {key.partition(".")[2] for key in LETTERS}
    assert not every & {
        name for names in keys.SYMBOLS.values() for name in names
    }  # no key hides behind a letter


STRANGE = {
    "nested": b"[game]\nnum_rounds = " + b"[" * 3000 + b"]" * 3000,
    "dotted": b"[game]\n" + b"a." * 3000 + b"a = 1",
    "dotted section": b"[" + b"a." * 3000 + b"a]\nx = 1",
    "digits": b"[game]\nnum_rounds = " + b"9" * 5000,
    "hexadecimal": b"[game]\nnum_rounds = 0x" + b"f" * 5000,
    "large": b"[game]\nnum_rounds = 1" + b"0" * 400,
    "binary": bytes(range(256)),
    "utf-16": "[game]\nnum_rounds = 5".encode("utf-16"),
    "latin-1": "[game]\nσ = 5  # é".replace("σ", "x").encode("latin-1"),
    "NUL": b"[game]\nnum_rounds = 5\0",
    "NUL in a text": b'[data]\ndataset = "\\u0000.npz"',
    "long key": b"[game]\n" + b"k" * 100_000 + b" = 1",
    "long text": b'[game]\nnum_rounds = "' + b"v" * 100_000 + b'"',
    "long list": b"[game]\nnum_rounds = [" + b"1," * 100_000 + b"]",
    "too long a file": b"#" * (2**25 + 1),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_strange_files_get_one_short_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(STRANGE[kind])
    with pytest.raises(InputError) as caught:
        load(path)
    message = str(caught.value).replace(str(tmp_path), "")
    assert len(message) < 250
    assert "\n" not in message


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbf[game]\nnum_rounds = 7")
    assert load(path).game.num_rounds == 7


def test_a_path_that_cannot_be_one() -> None:
    with pytest.raises(InputError, match="must be a readable TOML file"):
        load(Path("a\0b"))
    with pytest.raises(InputError, match="must be a TOML file of at most 33,554,432 bytes"):
        load(Path("/dev/zero"))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_unreadable_files(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="must be a readable TOML file"):
        load(path)


VALUES = st.recursive(
    st.one_of(
        st.integers(-5, 10**6), st.floats(), st.booleans(), st.text(max_size=8), st.just(1e-4), st.just(15)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["low", "high", "median", "spread", "scale", "x"]), inner, max_size=3
        ),
    ),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [
        *Game.model_fields,
        "count",
        "initial_volume",
        "collection_cost",
        "training_cost",
        "capacity",
        "seed",
        "initial_staleness",
        "method",
        "competition",
        "search",
        "smoothness",
        "learning_rate",
        "nonsense",
    ]
)


def assert_accepted_or_refused(path: Path) -> None:
    try:
        config = load(path)
    except InputError:
        return
    assert isinstance(config, Experiment)
    assert config.game.clients.size >= 1


@settings(max_examples=400)
@given(
    table=st.dictionaries(
        st.sampled_from(["game", "clients", "leader", "other"]),
        st.one_of(st.dictionaries(KEYS, VALUES, max_size=4), VALUES),
        max_size=3,
    )
)
def test_any_table_is_accepted_or_refused(tmp_path_factory: Any, table: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f.toml"
    path.write_text(tomli_w.dumps(table))
    assert_accepted_or_refused(path)


@settings(max_examples=300)
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_accepted_or_refused(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f.toml"
    path.write_bytes(content)
    assert_accepted_or_refused(path)


@settings(max_examples=200)
@given(
    rows=st.lists(
        st.lists(st.one_of(st.floats().map(str), st.text("0123456789.-e,\"'x", max_size=6)), max_size=5),
        max_size=5,
    ),
    header=st.permutations(["initial_volume", "collection_cost", "training_cost", "capacity"]),
)
def test_any_csv_is_accepted_or_refused(
    tmp_path_factory: Any, rows: list[list[str]], header: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "c.csv").write_text("\n".join(",".join(row) for row in [header, *rows]))
    assert_accepted_or_refused(write(folder, "[clients]\nfile = 'c.csv'"))


LAW = dufl.PowerLaw(floor=0.1, volume_weight=0.4, volume_exponent=0.4, staleness_weight=0.02, noise=0.005)


@pytest.mark.parametrize(("goal", "value"), [("budget", 60.0), ("accuracy", 0.75), ("point_worth", 30.0)])
def test_a_goal_in_a_file_is_the_goal_of_the_plan(tmp_path: Path, goal: str, value: float) -> None:
    game = dufl.Game(clients=dufl.Clients.draw(4, initial_volume=200.0), num_rounds=12, loss=LAW)
    wanted: dict[str, Any] = {goal: value}
    experiment = dufl.Experiment(game=game, leader=dufl.Leader(**wanted))
    (tmp_path / "goal.toml").write_text(experiment.to_toml())
    read = dufl.Experiment.from_toml(tmp_path / "goal.toml")
    assert read.leader.goals == wanted
    assert read.solve().offer == dufl.solve(game, **wanted).offer
    run = dufl.train(read.replace(local_epochs=1), out=tmp_path / "run")
    assert run.plan is not None
    assert run.plan.offer == read.solve().offer
    again = dufl.train(read.replace(local_epochs=1), out=tmp_path / "run", resume=True)
    assert again.records == run.records


def test_two_goals_are_one_too_many() -> None:
    with pytest.raises(dufl.InputError) as caught:
        dufl.Leader(budget=10.0, accuracy=0.9)
    assert caught.value.field == "budget and accuracy"
