"""The exceptions that DUFL raises. Each message states what is wrong and what to do.

    DuflError                    base class of the following
    ├── CertificateError         the independent certificate rejects an equilibrium, which must not be used
    ├── FetchError               no mirror provided a dataset; the message lists the error of each mirror
    ├── PluginError              a user's own algorithm, policy, model or dataset raised an exception
    └── InputError               a value is invalid; the error has the field, the rule and the value
        ├── CapacityError        a plan or a step exceeds the capacity of a client's buffer
        └── BufferFileError      the file of a durable buffer is damaged, foreign or in use; it is not changed

    NegativeUtilityWarning       some clients have negative utility under a plan

`InputError` is also a `ValueError`, so generic code can catch it. `exit_code` is the exit code of the command
line.
"""

import importlib
import traceback
from collections.abc import Callable
from pathlib import Path, PurePath
from types import TracebackType
from typing import Self

LONGEST = 80  # maximum number of characters of a value in a message


def shown(value: object, form: Callable[[object], str] = repr) -> str:
    """The text of a value in a message. Long text is truncated; an oversized value is shown as its type.

    >>> shown("abc"), shown(10**9)
    ("'abc'", '1000000000')
    >>> shown("9" * 5000)
    "'999999999999999999999999999999999999999…99999999999' (5,002 characters)"
    """
    try:
        text = form(value)
    except (ValueError, RecursionError):  # an integer with too many digits, or a deeply nested list
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= LONGEST else f"{text[:40]}…{text[-12:]} ({len(text):,} characters)"


class DuflError(Exception):
    """Base class of the errors that DUFL raises."""

    exit_code = 2


class CertificateError(DuflError):
    """The certificate rejects an equilibrium that a solver returned."""

    exit_code = 3


class FetchError(DuflError):
    """No mirror provided the file. The message lists the error of each mirror."""


class PluginError(DuflError):
    """A plugin raised an exception, which is the cause of this error."""


class RemoteError(Exception):
    """An exception of a plugin in another process. The message is its traceback."""


class InputError(DuflError, ValueError):
    """An input is invalid.

    Attributes:
        field: the invalid argument, configuration key or file; empty if there is none.
        rule: the condition that `field` must satisfy; empty if the message has another form.
        value: the invalid value.
        advice: how to fix it, appended to the message.
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
        """The error ``field must be rule, got value``; `text` is shown in place of the value.

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
        """The same error with another field name, such as a command-line option.

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
    """A client would hold more samples than the capacity of its buffer."""


class NegativeUtilityWarning(UserWarning):
    """Some clients have negative utility: their payment is less than their cost."""


def plugin_traceback(error: BaseException) -> str:
    """The traceback of a plugin's exception, starting at the first frame outside DUFL."""
    if isinstance(error, RemoteError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _is_ours(trace: TracebackType) -> bool:
    """Whether a frame belongs to DUFL or to the import of a plugin."""
    file = trace.tb_frame.f_code.co_filename
    imports = file.startswith("<frozen importlib") or file == importlib.__file__
    return imports or Path(file).is_relative_to(Path(__file__).parent)
