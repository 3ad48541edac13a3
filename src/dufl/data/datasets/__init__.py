"""Datasets and recordings by name, from files, objects or functions: files, checksums and downloads."""

from dufl.data.datasets.dataset import Dataset, own_dataset
from dufl.data.datasets.loading import Listing, find_datasets, listing, load_dataset
from dufl.data.datasets.recordings import is_recording_source, load_recording
from dufl.data.datasets.tables import Columns

__all__ = [
    "Columns",
    "Dataset",
    "Listing",
    "find_datasets",
    "is_recording_source",
    "listing",
    "load_dataset",
    "load_recording",
    "own_dataset",
]
