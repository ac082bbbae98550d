"""The worker process: launch, stop, life cycle."""
