"""Device helpers that no one architecture owns."""
