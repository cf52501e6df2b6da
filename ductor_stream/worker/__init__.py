"""Workers do: they run steps from ``tasks.<queue>``, one attempt each, and report what came of it.

A worker needs Kafka and nothing else: nothing here may import an adapter, a database driver, the
coordinator or the client. The service puts things in order, the executor runs one attempt, and the
window remembers which offsets of a partition are done.
"""
