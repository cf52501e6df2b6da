"""A worker that knows nothing but docs/wire.md. Usage: plain_worker.py BOOTSTRAP NAMESPACE QUEUE"""

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, wait

from confluent_kafka import Consumer, Producer

STEPS = {"charge": lambda order: f"receipt of {order['id']}", "echo": lambda *values: list(values)}
bootstrap, namespace, queue = sys.argv[1:4]
group = {"group.id": f"ductor.{namespace}.worker.{queue}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
consumer = Consumer({"bootstrap.servers": bootstrap, "isolation.level": "read_committed", **group})
producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"})
stopping: list[int] = []
signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))


def send(task: dict, type: str, **fields: object) -> None:
    fence = {name: task[name] for name in ("run_id", "execution", "node_id", "generation")}
    value = json.dumps({"type": type, **fence, "worker": "plain", **fields})
    failures: list[object] = []
    heard = lambda error, record: failures.append(error) if error else None
    producer.produce(task["results_topic"], value, task["run_id"], headers={"ductor-wire": b"1"}, on_delivery=heard)
    if producer.flush(30) or failures:  # the task's offset is not committed: it comes again
        raise SystemExit(f"the broker did not acknowledge: {failures}")


def run(task: dict, pool: ThreadPoolExecutor) -> None:
    if task["requires"] or task["step"] not in STEPS:
        error = {"code": "requires_unknown" if task["requires"] else "step_unknown", "message": task["step"]}
        return send(task, "attempt.finished", outcome="rejected", error=error)
    future = pool.submit(STEPS[task["step"]], *task["input"])
    while wait([future], timeout=min(1.0, task["heartbeat_timeout_ms"] / 3000)).not_done:
        send(task, "attempt.heartbeat")
    if error := future.exception():
        told = {"code": "user", "type": type(error).__name__, "message": str(error)}
        return send(task, "attempt.finished", outcome="failed", error=told)
    return send(task, "attempt.finished", outcome="completed", output=future.result())


consumer.subscribe([f"ductor.{namespace}.tasks.{queue}"])
with ThreadPoolExecutor(1) as pool:
    while not stopping:
        record = consumer.poll(0.5)
        if record is not None and record.error() is None:
            run(json.loads(record.value()), pool)
            consumer.commit(record, asynchronous=False)
consumer.close()
