// A worker that knows nothing but docs/wire.md, with kafkajs alone: npm install kafkajs
// Usage: node node_worker.js BOOTSTRAP NAMESPACE QUEUE

const { Kafka, Partitioners, logLevel } = require("kafkajs");

const STEPS = {
  charge: async (order) => `receipt of ${order.id}`,
  echo: async (...values) => values,
};
const [bootstrap, namespace, queue] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "node-worker", brokers: bootstrap.split(","), logLevel: logLevel.WARN });
const consumer = kafka.consumer({ groupId: `ductor.${namespace}.worker.${queue}`, sessionTimeout: 10000 });
const producer = kafka.producer({ idempotent: true, createPartitioner: Partitioners.DefaultPartitioner });

const send = (task, type, fields) => {
  const { run_id, execution, node_id, generation } = task; // the fence: echoed as it came
  const value = JSON.stringify({ type, run_id, execution, node_id, generation, worker: "node", ...fields });
  const message = { key: run_id, value, headers: { "ductor-wire": "1" } };
  return producer.send({ topic: task.results_topic, acks: -1, messages: [message] });
};

const outcome = async (task) => {
  if (task.requires.length > 0 || !Object.hasOwn(STEPS, task.step)) {
    const code = task.requires.length > 0 ? "requires_unknown" : "step_unknown";
    return { outcome: "rejected", error: { code, message: task.step } };
  }
  try {
    return { outcome: "completed", output: (await STEPS[task.step](...task.input)) ?? null };
  } catch (error) {
    const told = { code: "user", type: error.name, message: error.message, stack: error.stack };
    return { outcome: "failed", error: told };
  }
};

// One attempt at a time for each partition. Its offset is committed when the broker has its result, and not before.
const run = async ({ topic, partition, message, heartbeat }) => {
  const task = JSON.parse(message.value.toString());
  const lives = () => Promise.all([send(task, "attempt.heartbeat", {}), heartbeat()]).catch(() => {});
  const beats = setInterval(lives, Math.min(1000, task.heartbeat_timeout_ms / 3));
  try {
    await send(task, "attempt.finished", await outcome(task));
  } finally {
    clearInterval(beats);
  }
  await consumer.commitOffsets([{ topic, partition, offset: String(BigInt(message.offset) + 1n) }]);
};

const main = async () => {
  await Promise.all([producer.connect(), consumer.connect()]);
  await consumer.subscribe({ topic: `ductor.${namespace}.tasks.${queue}`, fromBeginning: true });
  await consumer.run({ autoCommit: false, partitionsConsumedConcurrently: 8, eachMessage: run });
  process.once("SIGTERM", async () => {
    await consumer.disconnect(); // finishes what runs
    await producer.disconnect();
    process.exit(0);
  });
};

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
