"""DUFL."""
