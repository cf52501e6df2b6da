"""Kafka spoken through confluent-kafka: the log of the coordinator, topic administration, client options.

Implements ``ports.EventLog`` and knows nothing of runs, ticks or Postgres. No error of the driver leaves this package.
"""
