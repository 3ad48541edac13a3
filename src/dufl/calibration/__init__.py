"""Calibration: what little data and old data cost a model, measured by training."""
