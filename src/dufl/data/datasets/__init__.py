"""Datasets by name, from an `.npz` file or from a function: their files, checksums and downloads."""

from dufl.data.datasets.dataset import Dataset, own_dataset
from dufl.data.datasets.loading import Listing, find_datasets, listing, load_dataset

__all__ = ["Dataset", "Listing", "find_datasets", "listing", "load_dataset", "own_dataset"]
