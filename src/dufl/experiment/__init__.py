"""Experiments, configuration files, training runs and result directories."""
