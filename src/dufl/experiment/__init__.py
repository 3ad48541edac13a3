"""Configuration files, run directories and what is kept in them."""
