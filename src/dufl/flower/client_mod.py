"""The client's side: a Flower mod that answers the server's queries and keeps the client's data fresh.

    update = DataUpdateMod(profile)          # profile(context) returns the ClientProfile of a node
    app = update.register(ClientApp(mods=[update]))

Inside `@app.train()`, `update.snapshot` is what the client holds in this round.

Flower copies apps. In simulation it pickles the app, with its mods, for every message, while the train
function finds `update` by its name in a module of the process that it runs in. A `DataUpdateMod` therefore
keeps no state between calls: the snapshot belongs to the message that is being processed, whichever object is
asked for it.
"""

import sys
from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dufl.data.buffer import Snapshot
from dufl.data.collector import Collector
from dufl.data.samples import Samples
from dufl.data.streams import SimulatedStream, Stream
from dufl.errors import InputError
from dufl.flower.client_store import ClientProfile, ClientStore
from dufl.flower.ledger import Claim
from dufl.flower.masking import mask
from dufl.flower.messages import (
    BEST_RESPONSE,
    COMMIT,
    HELLO,
    OPEN,
    RECORD,
    Answer,
    Commitment,
    Hello,
    MaskKeys,
    OpenQueries,
    Query,
    claim_record,
    round_of,
    run_of,
)

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

Next = Callable[[Message, Context], Message]

_SNAPSHOT: ContextVar[Snapshot[Any]] = ContextVar("snapshot")  # of the message that this thread processes


class DataUpdateMod:
    """A Flower mod that keeps a client's data fresh while its app trains.

    Args:
        profile: returns the profile of the client at a node, given the context of the node.
        deadline: seconds after which a round stops waiting for the stream.
    """

    def __init__(self, profile: Callable[[Context], ClientProfile], deadline: float | None = None) -> None:
        self._profile = profile
        self._deadline = deadline

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by name, as functions are pickled, if the module of `profile` has a name for this object.

        Otherwise Flower's simulation would send everything that `profile` refers to, such as a whole dataset,
        with every message.
        """
        module = getattr(self._profile, "__module__", None)
        known = vars(sys.modules[module]) if module in sys.modules and module != "__main__" else {}
        names = [name for name, value in list(known.items()) if value is self]
        return (_by_name, (module, names[0])) if names else super().__reduce_ex__(protocol)

    @property
    def snapshot(self) -> Snapshot[Any]:
        """The samples that the client holds in the current round."""
        snapshot = _SNAPSHOT.get(None)
        if snapshot is None:
            raise InputError("snapshot is only available while training, in the thread of the train function")
        return snapshot

    def loader(self, batch_size: int) -> "DataLoader[tuple[torch.Tensor, ...]]":
        """The samples that the client holds in the current round, in shuffled batches."""
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        samples = self.snapshot.samples
        features, labels = torch.from_numpy(samples.to_float()), torch.from_numpy(samples.labels)
        return DataLoader(TensorDataset(features, labels), batch_size=batch_size, shuffle=True)

    def register(self, app: ClientApp) -> ClientApp:
        """Let an app answer the server's queries."""
        answers = {HELLO: _hello, BEST_RESPONSE: _best_response, COMMIT: _commit, OPEN: _open}
        for kind, answer in answers.items():
            app.query(kind.partition(".")[2])(self._handler(answer))
        return app

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Enter the round, collect for the next one while the app trains, and claim the volume trained on."""
        if not message.metadata.message_type.startswith("train"):
            return call_next(message, context)
        round = round_of(message.content)
        with ClientStore(self._profile(context)) as store:
            store.check_run(run_of(message.content))
            snapshot = store.enter(round)
            collector = Collector(store.profile.stream, snapshot.samples, self._deadline)
            wanted = store.collection(round)
            collector.start(wanted, round)
            token = _SNAPSHOT.set(snapshot)
            try:
                reply = call_next(message, context)
            finally:
                _SNAPSHOT.reset(token)
                found = collector.finish()
                collector.close()
            if wanted:
                store.put_aside(round, found.samples, found.position)
            if reply.has_content():
                reply.content[RECORD] = claim_record(_claim(store, round, snapshot))
            return reply

    def _handler(self, answer: Callable[[ClientStore, RecordDict], RecordDict]) -> Next:
        def reply(message: Message, context: Context) -> Message:
            with ClientStore(self._profile(context)) as store:
                return Message(answer(store, message.content), reply_to=message)

        return reply


def stream_of(dataset: Any, seed: int = 0) -> Callable[[int], Stream[Samples]]:
    """Simulated streams that draw from a PyTorch dataset of (features, label) pairs, held in memory.

    Returns:
        A function from the number of a client to its stream, for `ClientProfile.from_context`.
    """
    from torch.utils.data import TensorDataset

    if isinstance(dataset, TensorDataset):
        features, labels = (tensor.numpy() for tensor in dataset.tensors)
    else:
        pairs = [dataset[index] for index in range(len(dataset))]
        features = np.stack([np.asarray(feature) for feature, _ in pairs])
        labels = np.array([int(label) for _, label in pairs])
    pool = Samples(features.astype(np.float32), labels.astype(np.int64))
    return lambda client: SimulatedStream(pool=pool, client=client, seed=seed)


def _by_name(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _hello(store: ClientStore, _: RecordDict) -> RecordDict:
    return Hello(store.profile.client, store.public_key).to_records()


def _best_response(store: ClientStore, records: RecordDict) -> RecordDict:
    query, client = Query.read(records), store.profile.client
    store.catch_up(query.first_round, query.run)
    store.disclose(query)
    volumes = np.array([store.best_response(announcement) for announcement in query.announcements])
    if not query.roster:
        return Answer(client, volumes).to_records()
    return Answer(client, mask(volumes, client, store.key, query.roster, query.mask_id)).to_records()


def _commit(store: ClientStore, records: RecordDict) -> RecordDict:
    query = Query.read(records)
    store.catch_up(query.first_round, query.run)
    volumes = store.commit(query.announcements[0], query.first_round, query.run, query.grid)
    return Commitment(store.profile.client, volumes, store.grid(query.grid)).to_records()


def _open(store: ClientStore, records: RecordDict) -> RecordDict:
    return MaskKeys(store.profile.client, store.open(OpenQueries.read(records))).to_records()


def _claim(store: ClientStore, round: int, snapshot: Snapshot[Any]) -> Claim:
    volume, labels = len(snapshot.ages), snapshot.samples.labels
    return Claim(
        client=store.profile.client,
        volume=volume,
        committed=store.committed(round),
        mean_age=float(snapshot.ages.mean()) if volume else 1.0,
        classes=len(np.unique(labels)) if labels.dtype.kind != "f" else 0,
    )
