"""The names of models, apart from the models: a configuration is checked without loading torch."""

from dufl.learning.choices import check_choice

KNOWN_MODELS = ("logistic", "cnn", "resnet18", "resnet18-coarse")


def check_name(name: str) -> str:
    """The name, if it is known or an import path; whether a path leads anywhere shows when it is built.

    >>> check_name("resnet")
    Traceback (most recent call last):
    dufl.errors.InputError: unknown model 'resnet': did you mean 'resnet18'?
    """
    return check_choice("model", name, KNOWN_MODELS)
