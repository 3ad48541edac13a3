"""Client data: datasets, streams of fresh samples, and buffers that age. Never imports the game."""
