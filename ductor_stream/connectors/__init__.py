"""Connectors: what a worker does for an HTTP step or a Kafka step, out of its declaration and the worker's settings.

Nothing is decided here; ``binding`` makes steps that the executor can run. The HTTP library is imported when a worker
has an HTTP step.
"""
