"""A client's own costs: stated by the client, never assumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from dufl.data.samples import Samples
from dufl.data.streams import SimulatedStream, Stream
from dufl.errors import InputError
from dufl.flower import ClientProfile

COSTS = {"collection-cost": 5e-4, "training-cost": 2.5e-5}


def stream(client: int) -> Stream[Samples]:
    pool = Samples(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))
    return SimulatedStream(pool=pool, client=client, seed=0)


def context(node: dict[str, Any], run: dict[str, Any]) -> Context:
    return Context(1, 1, {"partition-id": 3} | node, RecordDict(), {"folder": "/runs"} | run)


@pytest.mark.parametrize("default", [{}, {"collection-cost": "", "training-cost": ""}])
@pytest.mark.parametrize("field", ["collection_cost", "training_cost"])
def test_a_missing_cost_is_an_error_that_names_it(field: str, default: dict[str, Any]) -> None:
    config = {key: cost for key, cost in COSTS.items() if key != field.replace("_", "-")}
    with pytest.raises(InputError) as caught:
        ClientProfile.from_context(context(config, default), stream, initial_volume=10)
    assert caught.value.field == field
    assert field.replace("_", "-") in caught.value.rule


@pytest.mark.parametrize("cost", [-1.0, "5e-4", True, float("nan"), float("inf")])
def test_a_cost_that_is_no_cost(cost: Any) -> None:
    with pytest.raises(InputError) as caught:
        ClientProfile.from_context(context(COSTS | {"training-cost": cost}, {}), stream, initial_volume=10)
    assert (caught.value.field, caught.value.rule) == ("training_cost", "a number >= 0")


def test_arguments_come_before_the_node_and_the_node_before_the_run() -> None:
    run = {"collection-cost": 1.0, "training-cost": 2.0}
    profile = ClientProfile.from_context(context({}, run), stream, 10)
    assert (profile.collection_cost, profile.training_cost) == (1.0, 2.0)
    profile = ClientProfile.from_context(context({"training-cost": 3}, run), stream, 10, collection_cost=0.0)
    assert (profile.collection_cost, profile.training_cost) == (0.0, 3.0)
    assert (profile.client, profile.file) == (3, Path("/runs/client-3.sqlite"))


def test_prices_are_zero_unless_they_are_stated() -> None:
    profile = ClientProfile.from_context(context(COSTS, {"training-price": ""}), stream, 10)
    assert (profile.collection_price, profile.training_price) == (0.0, 0.0)
    run = {"collection-price": 0.1, "training-price": 0.2}
    profile = ClientProfile.from_context(context(COSTS | {"training-price": 1}, run), stream, 10)
    assert (profile.collection_price, profile.training_price) == (0.1, 1.0)
    profile = ClientProfile.from_context(context(COSTS, run), stream, 10, collection_price=0.3)
    assert (profile.collection_price, profile.training_price) == (0.3, 0.2)


@pytest.mark.parametrize("price", [-1.0, "5e-4", True, float("nan"), float("inf")])
def test_a_price_that_is_no_price(price: Any) -> None:
    with pytest.raises(InputError) as caught:
        ClientProfile.from_context(context(COSTS | {"collection-price": price}, {}), stream, 10)
    assert (caught.value.field, caught.value.rule) == ("collection_price", "a number >= 0")


def test_how_much_is_disclosed_is_in_the_configuration() -> None:
    profile = ClientProfile.from_context(context(COSTS, {}), stream, 10)
    assert (profile.min_others, profile.max_questions, profile.allow_unmasked) == (3, 200, False)
    run = {"min-others": 1, "max-questions": 50, "allow-unmasked": True}
    profile = ClientProfile.from_context(context(COSTS | {"min-others": 5}, run), stream, 10)
    assert (profile.min_others, profile.max_questions, profile.allow_unmasked) == (5, 50, True)
    assert ClientProfile.from_context(context(COSTS, run), stream, 10, min_others=7).min_others == 7


@pytest.mark.parametrize(
    ("key", "value"), [("min-others", -1), ("max-questions", True), ("allow-unmasked", 1)]
)
def test_a_limit_that_is_no_limit(key: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        ClientProfile.from_context(context(COSTS | {key: value}, {}), stream, 10)
    assert caught.value.field == key


@pytest.mark.parametrize("number", [None, -1, "0", True])
def test_a_node_without_a_number(number: Any) -> None:
    with pytest.raises(InputError) as caught:
        ClientProfile.from_context(context(COSTS | {"partition-id": number}, {}), stream, 10)
    assert caught.value.field == "partition-id"


def test_a_node_without_a_folder() -> None:
    with pytest.raises(InputError) as caught:
        ClientProfile.from_context(context(COSTS, {"folder": 1}), stream, 10)
    assert caught.value.field == "folder"
