"""`dufl init`: a commented example to start from."""

from pathlib import Path
from typing import Annotated

import typer

from dufl.errors import InputError

EXAMPLE = """\
# A federation and its server. Every key is optional. The values in this file are the defaults, which are
# those of Liu & Wang (ECAI 2025). `dufl plan FILE` computes the plan, `dufl train FILE` trains.

policy = "dufl"              # follow the plan; or "static", never update; "window-5"; "package.module:Class"

[game]
num_rounds = 100             # T
horizon = "finite"           # or "endless": plan a service without a last round
time_sensitivity = 0.75      # σ: how much staleness hurts the task
sampling_noise = 1.0         # ψ: how much a small volume hurts
payment_weight = 1e-4        # γ: the weight of money against accuracy, in [0, 1]
decay = 1.0                  # κ1   the weights of rounds, volume and staleness;
volume_weight = 1.0          # κ2   or set strong_convexity (μ), smoothness (β) and
staleness_weight = 1e-2      # κ3   learning_rate (η <= 1/(2β)), which determine them (Theorem 1)
payment_range = [0, 500]     # R per round
conservation_range = [0, 1]  # θ
# trim_start = true          # a client may begin with less than its initial volume
# participation = "voluntary"  # clients whose utility is below their reservation stay away

[clients]
count = 15
# Each of these is a number, a list with one entry per client, { low =, high = } (uniform; with
# scale = "log" uniform in the logarithm), or { median =, spread = } (log-normal).
initial_volume = 1000                              # D(0), samples
collection_cost = { low = 1e-4, high = 1e-3 }      # α, money per squared sample collected
training_cost = { low = 5e-6, high = 5e-5 }        # β, money per squared sample held
# initial_staleness = 1.0    # S(0) in rounds; above 1 to plan again during a run
# capacity = 5000            # maximum number of samples in a buffer; default: no limit
# collection_price = 0.01    # linear parts of the costs: money per sample collected,
# training_price = 0.001     # and per sample held in a round
# reservation = 0.0          # utility below which a client stays away if participation = "voluntary"
seed = 0
# file = "clients.csv"       # replaces all of the above: one line per client, with the columns
#                            # initial_volume, collection_cost, training_cost
#                            # [, initial_staleness, capacity, collection_price, training_price, reservation]

[leader]
method = "stackelberg"      # or "algorithm1", the paper's loop
competition = "mean-field"   # or "nash": each client accounts for its influence on the total
# replan_every = 10          # rounds after which a training plans the rest again, or "drift": when it leaves
#                            # the prediction; needs a loss law from `dufl calibrate`; default: never
# budget = 1000              # the most accurate plan that pays at most this over all rounds; or
# accuracy = 0.9             # the cheapest plan with this accuracy; or
# point_worth = 50           # what a point of accuracy is worth; all need a loss law from `dufl calibrate`
# robust = "expected"        # or "worst": plan under the uncertainty of a calibrated loss law
# For algorithm1 only:
search = "bayesian"          # or "direct"
evaluations = 30             # of the cost per Bayesian search
max_iterations = 20
tolerance = 1e-4             # relative change of the total volume at which the loop ends
damping = 0.0                # 0: the paper's undamped update; 0.5 converges
seed = 0

# The following sections are for `dufl train` and `dufl compare` only.

[data]
dataset = "digits"           # mnist, fmnist, svhn, cifar10, cifar100, weather, insects, …, the path of an
#                            # .npz, .csv or .parquet file, or "package.module:function"
kind = "auto"                # "recorded" if samples have times; otherwise "simulated": they arrive and age
# data_dir = "data"          # directory of its files, if not in $DUFL_DATA or the cache directory
noise_scale = 0.5            # standard deviation of the noise after T rounds at σ = 1, on features in [0, 1]
noise_growth = 1.0           # 1: noise grows linearly with age; 0.5: like a random walk
# initial_classes = 8        # number of classes at the start; default: C·(1 - σ/3) of C, rounded up
arrival_until = 0.5          # the fraction of the rounds by which every class has arrived
class_order = "label"        # or "client", one order per client; or a list of all classes
# dirichlet_alpha = 0.5      # concentration of classes per client; smaller is more skewed; default: uniform
discard = "uniform"          # the samples that a buffer discards; or "oldest", "reservoir", "class-balanced",
#                            # "package.module:function"
# stream = "package.module:Class"  # your own stream of indices into the training samples
task = "classification"      # or "regression", if labels are numbers
label = "label"              # recorded tables: the column with the labels
time = "time"                # recorded tables: the column with the times
# client = "client"          # recorded tables: the column that says who recorded a row
# features = ["a", "b"]      # recorded tables: the columns with the features; default: all others
warm_up = 0.1                # recorded: the share of the recorded time that is known before round 0
periods = "time"             # recorded: rounds of equal "time", or with an equal "count" of samples
collect = "newest"           # recorded: what a client collects of a larger period; or some at "random"
deal = "even"                # recorded: how samples without a client are dealt; or in "blocks" of time
normalize = "first"          # recorded: standardize by the warm-up; or "running", by all before; or "none"

[training]
algorithm = "fedavg"         # or "fedprox", "feddyn", "package.module:Class"
proximal_mu = 0.01           # μ of FedProx
feddyn_alpha = 0.1           # α of FedDyn
model = "logistic"           # "linear" for regression; or "cnn", "resnet18", "resnet18-coarse",
#                            # "package.module:Class": with PyTorch
loss = "auto"                # "cross_entropy" for classes, "squared_error" for numbers, or
#                            # "package.module:function" of (logits, labels): with PyTorch
# metrics = ["package.module:function"]  # of (labels, logits), on the test samples
local_epochs = 20            # epochs of local training per round
batch_size = 64
learning_rate = 0.01         # of local SGD, in round 0
learning_rate_decay = 1.0    # the factor from each round to the next
momentum = 0.0               # of local SGD
weight_decay = 0.0           # λ of λ/2·‖w‖² in a client's loss
augmentation = "none"        # or "crop", "flip", "crop-flip": images are moved and mirrored in each epoch
age_weighting = "none"       # or "linear", "exponential": old samples count less in local training
age_scale = 10.0             # rounds after which a fresh sample counts nothing (linear) or half (exponential)
fraction_train = 1.0         # the fraction of clients that train per round
client_selection = "random"  # or "age": those whose last reply is longest ago, weighted by volume
client_dropout = 0.0         # the probability that a sampled client does not reply
precision = "float32"        # or "bf16", for torch; "auto": bf16 if the processor is made for it
seed = 0                     # of data, training and sampling
device = "auto"              # an accelerator, or else "cpu"; or "cuda", "cuda:1", "mps"
workers = 0                  # cores for training, 0 for all; does not change the results
checkpoint_every = 10        # rounds

# The following section is for runs on Flower only.

[service]
# max_rounds = 1000          # of a service with horizon = "endless"; default: until it is stopped
# total_budget = 5000        # paid at most, over all rounds and restarts; default: any amount
unit = "0.01"                # the smallest amount that is paid, and its currency, such as "0.01 EUR"
payment_rule = "volume"      # or "audited": held back while updates do not improve the model; or
#                            # "contribution": by how much they improve it
audit_samples = 1000         # of the server, on which updates are audited
audit_share = 0.1            # of a round's time that the audit may take
commitment_grid = 1          # clients round the volumes that they commit to to multiples of this
"""


def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("dufl.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a commented example file with the paper's defaults."""
    from dufl.experiment.files import write_text
    from dufl.experiment.output import check_file

    if file.exists() and not force:
        raise InputError(f"{file} must not exist yet: give another name, or --force to replace it")
    if not file.parent.is_dir():
        raise InputError(f"{file} must be in a folder that exists, got {file.parent}")
    check_file(file, "FILE")
    write_text(file, EXAMPLE)
    typer.echo(f"written: {file}\nnext: dufl plan {file}")
