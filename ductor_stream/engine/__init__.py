"""The engine decides: pure and synchronous, frozen values in, values out (R2).

It must not do I/O, read a clock, draw random numbers, log, or know Kafka and Postgres.
"""
