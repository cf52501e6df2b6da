"""The coordinator decides: it owns run partitions, ticks their runs serially, commits, then dispatches.

``service`` is the loop; the other modules are its steps. It must not import an adapter: it sees
Kafka and Postgres through ``ductor_stream.ports`` only, and is the sole writer of runs (R1).
"""
