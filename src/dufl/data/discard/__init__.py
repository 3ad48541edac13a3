"""Discard rules: which samples leave a buffer."""
