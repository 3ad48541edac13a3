"""The server."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from app.task import Net, test
from dufl import Clients, Game
from dufl.flower import DataUpdateStrategy

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the model on the server."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model)
    return MetricRecord({"loss": loss, "accuracy": accuracy})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model."""
    run = context.run_config
    torch.manual_seed(0)
    game = Game(clients=Clients.draw(run["num-clients"]), num_rounds=run["num-server-rounds"])
    strategy = DataUpdateStrategy(FedAvg(fraction_evaluate=0.0), game, run["folder"], run_config=run)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=run["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), Path(run["model"]).expanduser())
