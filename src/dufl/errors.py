"""The exceptions a user can meet. Each message says what is wrong and what to do.

    DuflError                    anything below
    ├── CertificateError         the independent certificate refuses an equilibrium: it must not be used
    ├── FetchError               a dataset could not be had from any mirror: says what each of them did
    ├── PluginError              a user's own algorithm, policy, model or dataset raised an exception
    └── InputError               a value breaks a rule: names the field, the rule and the value
        ├── CapacityError        a plan, or a step, does not fit into a client's buffer
        └── BufferFileError      a durable buffer's file is damaged, foreign or in use; it is left alone

    NegativeUtilityWarning       a plan under which some clients would rather stay away

`InputError` is a `ValueError` too, so code that knows nothing of DUFL catches it. `exit_code` is what the
command line ends with.
"""

import importlib
import traceback
from collections.abc import Callable
from pathlib import Path, PurePath
from types import TracebackType
from typing import Self

LONGEST = 80  # characters of a value in a message


def shown(value: object, form: Callable[[object], str] = repr) -> str:
    """A value for a message, whatever it is: a long one is cut, one that has no text is named by its kind.

    >>> shown("abc"), shown(10**9)
    ("'abc'", '1000000000')
    >>> shown("9" * 5000)
    "'999999999999999999999999999999999999999…99999999999' (5,002 characters)"
    """
    try:
        text = form(value)
    except (ValueError, RecursionError):  # an integer of too many digits, a list in a list in a list …
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= LONGEST else f"{text[:40]}…{text[-12:]} ({len(text):,} characters)"


class DuflError(Exception):
    """Base of all errors that DUFL raises on purpose."""

    exit_code = 2


class CertificateError(DuflError):
    """The certificate refuses an equilibrium that a solver returned."""

    exit_code = 3


class FetchError(DuflError):
    """No mirror gave the file; the message says what each of them did."""


class PluginError(DuflError):
    """A user's own code raised an exception, which is the cause of this one."""


class RemoteError(Exception):
    """A plugin's exception in another process: the text of its traceback."""


class InputError(DuflError, ValueError):
    """An input breaks a rule.

    Attributes:
        field: the argument, configuration key or file that breaks it; empty if there is none.
        rule: what `field` must be; empty if the message has another form.
        value: what was given instead.
        advice: what to do about it, appended to the message.
    """

    def __init__(
        self, message: str, *, field: str = "", rule: str = "", value: object = None, advice: str = ""
    ) -> None:
        super().__init__(message)
        self.field = field
        self.rule = rule
        self.value = value
        self.advice = advice
        self._text = ""

    @classmethod
    def of(cls, field: str, rule: str, value: object, *, advice: str = "", text: str | None = None) -> Self:
        """The usual form of message: ``field must be rule, got value``; `text` is shown in place of a value.

        >>> error = InputError.of("conservation_rate", "in [0, 1]", 1.3)
        >>> str(error), error.field, error.rule, error.value
        ('conservation_rate must be in [0, 1], got 1.3', 'conservation_rate', 'in [0, 1]', 1.3)
        """
        if text is None:
            text = str(value) if isinstance(value, str | PurePath) else shown(value, str)
        message = f"{field} must be {rule}, got {text}" + (f": {advice}" if advice else "")
        error = cls(message, field=field, rule=rule, value=value, advice=advice)
        error._text = text
        return error

    def renamed(self, field: str) -> "InputError":
        """The same error under another name of the field, such as the option of a command.

        >>> str(InputError.of("out", "a directory", "x").renamed("--out"))
        '--out must be a directory, got x'
        """
        if self.rule:
            return type(self).of(field, self.rule, self.value, advice=self.advice, text=self._text)
        return type(self)(str(self), field=field, value=self.value)

    def within(self, section: str, source: str = "") -> "InputError":
        """The same error for a key of a section in a file.

        >>> str(InputError.of("num_rounds", ">= 2", 1).within("game", "dufl.toml"))
        'dufl.toml: game.num_rounds must be >= 2, got 1'
        """
        key = f"{section}.{self.field}" if self.field else section
        named = self.renamed(key)
        message = str(named) if self.rule else f"{section}: {self}"
        named.args = (f"{source}: {message}" if source else message,)
        return named


class BufferFileError(InputError):
    """The file of a durable buffer cannot be used."""


class CapacityError(InputError):
    """A client would have to hold more samples than its buffer takes."""


class NegativeUtilityWarning(UserWarning):
    """Some clients are paid less than what their work costs them."""


def plugin_traceback(error: BaseException) -> str:
    """The traceback of a plugin's exception, from the first frame that is not DUFL's."""
    if isinstance(error, RemoteError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _is_ours(trace: TracebackType) -> bool:
    """Whether a frame is one of DUFL, or of the import of a plugin."""
    file = trace.tb_frame.f_code.co_filename
    imports = file.startswith("<frozen importlib") or file == importlib.__file__
    return imports or Path(file).is_relative_to(Path(__file__).parent)
