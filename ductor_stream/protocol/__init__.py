"""The wire contract: records on Kafka <-> engine values, as ``docs/wire.md`` has it.

JSON, Avro (single-object encoding) and Confluent's format; topic names, keys and headers. Pure
translation: nothing here opens a connection, knows a clock, or decides what a message leads to.
User values (inputs, outputs, payloads, details) stay JSON bytes and are never decoded.
"""
