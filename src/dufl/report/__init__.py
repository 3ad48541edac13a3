"""Figures and tables, made from plans and records."""
