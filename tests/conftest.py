"""Test settings: the same examples on every run, however slow the machine."""

from hypothesis import settings

settings.register_profile("dufl", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("dufl")
