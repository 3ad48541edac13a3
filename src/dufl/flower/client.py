"""The client's side: answers the server's questions and gives a `ClientApp` its data, round by round.

    update = DataUpdateMod(person)          # person(context) says what this client knows
    app = ClientApp(mods=[update])
    update.register(app)

and inside `@app.train()`, `update.snapshot` is what the client holds in this round.

Flower copies apps: in simulation it pickles the app, with its mods, for every message, while the train
function finds `update` by its name in a module of the process that it runs in. So a `DataUpdateMod` keeps
nothing between calls: what is held belongs to the message that is being answered, whichever object is asked.
"""

import sys
from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dufl.data.buffer import Snapshot
from dufl.data.collector import Collector
from dufl.errors import InputError
from dufl.flower.client_store import ClientProfile, ClientStore
from dufl.flower.masking import masked
from dufl.flower.messages import (
    BEST_RESPONSE,
    COMMIT,
    HELLO,
    RECORD,
    Answer,
    Claim,
    Commitment,
    Hello,
    Questions,
    round_of,
)

Next = Callable[[Message, Context], Message]

_HELD: ContextVar[Snapshot[Any]] = ContextVar("held")  # of the message that this thread is answering


class DataUpdateMod:
    """A Flower mod that keeps a client's data fresh while its app trains.

    Args:
        person: says, from the context of a node, what this client knows.
        deadline: seconds after which a round does not wait for the stream any longer.
    """

    def __init__(self, person: Callable[[Context], ClientProfile], deadline: float | None = None) -> None:
        self._person = person
        self._deadline = deadline

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled by name, as functions are, if the module of `person` has a name for it.

        Otherwise Flower's simulation would send what `person` needs, a whole dataset, with every message.
        """
        module = getattr(self._person, "__module__", None)
        known = vars(sys.modules[module]) if module in sys.modules and module != "__main__" else {}
        names = [name for name, value in list(known.items()) if value is self]
        return (_named, (module, names[0])) if names else super().__reduce_ex__(protocol)

    @property
    def snapshot(self) -> Snapshot[Any]:
        """What the client holds in the round that it is training in."""
        held = _HELD.get(None)
        if held is None:
            raise InputError("snapshot must be asked for while training, in the thread of the train function")
        return held

    def loader(self, batch_size: int) -> Any:
        """What the client holds in this round as a `DataLoader` of PyTorch."""
        from dufl.flower.torch_data import loader

        return loader(self.snapshot, batch_size)

    def register(self, app: ClientApp) -> ClientApp:
        """Let an app answer the server's questions."""
        for kind, answer in ((HELLO, _hello), (BEST_RESPONSE, _best_response), (COMMIT, _commit)):
            app.query(kind.partition(".")[2])(self._answering(answer))
        return app

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Enter the round, collect for the next one while the app trains, and claim what it trained on."""
        if not message.metadata.message_type.startswith("train"):
            return call_next(message, context)
        round = round_of(message.content)
        with ClientStore(self._person(context)) as holding:
            held = holding.enter(round)
            collector = Collector(holding.person.stream, held.samples, self._deadline)
            wanted = holding.wanted(round)
            collector.start(wanted, round)
            token = _HELD.set(held)
            try:
                reply = call_next(message, context)
            finally:
                _HELD.reset(token)
                fresh = collector.finish().samples
            if wanted:
                holding.put_aside(round, fresh)
            if reply.has_content():
                reply.content[RECORD] = _claim(holding, round, held).to_record()
            return reply

    def _answering(self, answer: Callable[[ClientStore, RecordDict], RecordDict]) -> Next:
        def reply(message: Message, context: Context) -> Message:
            with ClientStore(self._person(context)) as holding:
                return Message(answer(holding, message.content), reply_to=message)

        return reply


def _named(module: str, name: str) -> Any:
    """What a module calls so."""
    return getattr(import_module(module), name)


def _hello(holding: ClientStore, _: RecordDict) -> RecordDict:
    return Hello(holding.person.client, holding.public).to_records()


def _best_response(holding: ClientStore, records: RecordDict) -> RecordDict:
    asked, client = Questions.read(records), holding.person.client
    holding.come_to(asked.first_round)
    volumes = np.array([holding.answer(question) for question in asked.questions])
    if not asked.roster:
        return Answer(client, volumes).to_records()
    return Answer(client, masked(volumes, client, holding.key, asked.roster, asked.name)).to_records()


def _commit(holding: ClientStore, records: RecordDict) -> RecordDict:
    asked = Questions.read(records)
    holding.come_to(asked.first_round)
    hashes = holding.commit(asked.questions[0], asked.first_round)
    return Commitment(holding.person.client, hashes).to_records()


def _claim(holding: ClientStore, round: int, held: Snapshot[Any]) -> Claim:
    committed, nonce = holding.opening(round)
    number = len(held.ages)
    age = float(held.ages.mean()) if number else 1.0
    classes = len(np.unique(held.samples.labels))
    return Claim(holding.person.client, number, committed, nonce, age, classes)
