"""Training: models, local training, aggregation and the rounds."""
