"""Metrics, logs and health: every name declared once. Must not import adapters or services, and decides nothing."""
