// amqplib against a started node: AMQP_URL=... node amqplib.mjs; exits 0 and says how many checks held.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(process.env.INTEROP_MODULES + "/");
const amqp = require("amqplib");
const url = process.env.AMQP_URL;
let checks = 0;

const timeout = setTimeout(() => { console.error("amqplib: not finished after 50 s"); process.exit(1); }, 50_000);

async function check(name, work) {
  const connection = await amqp.connect(url, { heartbeat: 5 });
  const failed = new Promise((_, reject) => connection.on("error", reject));
  failed.catch(() => {});
  try {
    await work(connection);
    checks += 1;
  } catch (error) {
    console.error(`amqplib: ${name}: ${error.stack}`);
    process.exit(1);
  }
  try { await connection.close(); } catch { /* the broker closed it, as the check wanted */ }
}

const once = (emitter, event) => new Promise((resolve) => emitter.once(event, resolve));

async function collect(channel, queue, count, options = {}) {
  const messages = [];
  let done;
  const all = new Promise((resolve) => { done = resolve; });
  const { consumerTag } = await channel.consume(queue, (message) => {
    messages.push(message);
    if (!options.noAck) channel.ack(message);
    if (messages.length === count) done();
  }, options);
  await all;
  await channel.cancel(consumerTag);
  return messages;
}

await check("hello world with every property", async (connection) => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  const options = {
    contentType: "text/plain", contentEncoding: "utf-8", persistent: true, priority: 4, correlationId: "c",
    replyTo: "r", expiration: "60000", messageId: "m", timestamp: 1700000000, type: "t", userId: "guest", appId: "a",
    headers: { n: 1, negative: -5, big: 2 ** 40, f: 1.5, text: "ü", yes: true, list: [1, "a"], nested: { deep: { x: 1 } } },
  };
  channel.sendToQueue(queue, Buffer.from("Hello"), options);
  const [message] = await collect(channel, queue, 1);
  assert.equal(message.content.toString(), "Hello");
  assert.deepEqual(message.properties.headers, options.headers);
  for (const name of ["contentType", "priority", "correlationId", "replyTo", "expiration", "messageId", "timestamp",
    "type", "userId", "appId"]) assert.equal(message.properties[name], options[name], name);
  assert.equal(message.properties.deliveryMode, 2);
  assert.equal(message.fields.redelivered, false);
});

await check("confirms and mandatory", async (connection) => {
  const channel = await connection.createConfirmChannel();
  await channel.assertQueue("node-confirms", { durable: true });
  await channel.purgeQueue("node-confirms");
  for (let i = 0; i < 1000; i++) {
    channel.sendToQueue("node-confirms", Buffer.from(String(i)), { persistent: true });
  }
  await channel.waitForConfirms();
  const returned = once(channel, "return");
  channel.publish("", "node-nowhere", Buffer.from("x"), { mandatory: true });
  await channel.waitForConfirms();
  assert.equal((await returned).fields.replyCode, 312);
  const messages = await collect(channel, "node-confirms", 1000);
  assert.deepEqual(messages.map((m) => Number(m.content)), [...Array(1000).keys()]);
  assert.equal((await channel.deleteQueue("node-confirms")).messageCount, 0);
});

await check("nack by reject-publish", async (connection) => {
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true, maxLength: 1, overflow: "reject-publish" });
  channel.sendToQueue(queue, Buffer.from("1"));
  await channel.waitForConfirms();
  channel.sendToQueue(queue, Buffer.from("2"));
  await assert.rejects(channel.waitForConfirms());
});

await check("topic, headers, exchange to exchange, alternate", async (connection) => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  await channel.assertExchange("node-unrouted", "fanout", { durable: false, autoDelete: true });
  await channel.bindQueue(queue, "node-unrouted", "");
  await channel.assertExchange("node-topic", "topic", { durable: false, autoDelete: true, alternateExchange: "node-unrouted" });
  await channel.assertExchange("node-headers", "headers", { durable: false, autoDelete: true });
  await channel.bindExchange("node-headers", "node-topic", "a.#");
  await channel.bindQueue(queue, "node-headers", "", { "x-match": "all", color: "red" });
  channel.publish("node-topic", "a.b", Buffer.from("red"), { headers: { color: "red" } });
  channel.publish("node-topic", "a.b", Buffer.from("blue"), { headers: { color: "blue" } });
  channel.publish("node-topic", "z", Buffer.from("unrouted"));
  const messages = await collect(channel, queue, 2, { noAck: true });
  assert.deepEqual(messages.map((m) => m.content.toString()), ["red", "unrouted"]);
});

await check("prefetch, nack, redelivery, get", async (connection) => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  for (let i = 0; i < 5; i++) channel.sendToQueue(queue, Buffer.from(String(i)));
  await channel.prefetch(2);
  const held = [];
  let second;
  const two = new Promise((resolve) => { second = resolve; });
  const { consumerTag } = await channel.consume(queue, (m) => { held.push(m); if (held.length === 2) second(); });
  await two;
  assert.equal((await channel.checkQueue(queue)).messageCount, 3);
  await channel.cancel(consumerTag);
  channel.nack(held[1], true);
  const again = await channel.get(queue);
  assert.equal(again.content.toString(), "0");
  assert.equal(again.fields.redelivered, true);
  assert.equal(again.fields.messageCount, 4);
  channel.reject(again, false);
  channel.ackAll();
  assert.equal((await channel.purgeQueue(queue)).messageCount, 4);
  assert.equal(await channel.get(queue), false);
});

await check("global prefetch over two consumers", async (connection) => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  await channel.prefetch(3, true);
  let seen = 0;
  await channel.consume(queue, () => { seen += 1; });
  await channel.consume(queue, () => { seen += 1; });
  for (let i = 0; i < 10; i++) channel.sendToQueue(queue, Buffer.from(""));
  while ((await channel.checkQueue(queue)).messageCount !== 7);
  await channel.checkQueue(queue);
  assert.equal(seen, 3);
});

await check("direct reply-to", async (connection) => {
  const server = await connection.createChannel();
  const { queue } = await server.assertQueue("", { exclusive: true });
  await server.consume(queue, (m) => {
    server.sendToQueue(m.properties.replyTo, Buffer.from(String(m.content * 2)), { correlationId: m.properties.correlationId });
  }, { noAck: true });
  const client = await connection.createChannel();
  const answer = new Promise((resolve) => {
    client.consume("amq.rabbitmq.reply-to", resolve, { noAck: true }).then(() => client.sendToQueue(
      queue, Buffer.from("21"), { replyTo: "amq.rabbitmq.reply-to", correlationId: "7" }));
  });
  const message = await answer;
  assert.equal(message.content.toString(), "42");
  assert.equal(message.properties.correlationId, "7");
});

await check("priority and dead letters", async (connection) => {
  const channel = await connection.createChannel();
  const { queue: dead } = await channel.assertQueue("", { exclusive: true });
  const { queue } = await channel.assertQueue("", { exclusive: true, maxPriority: 5, deadLetterExchange: "", deadLetterRoutingKey: dead });
  for (const priority of [1, 5, 3]) channel.sendToQueue(queue, Buffer.from(String(priority)), { priority });
  const order = [];
  for (let i = 0; i < 3; i++) {
    const message = await channel.get(queue);
    order.push(Number(message.content));
    channel.nack(message, false, false);
  }
  assert.deepEqual(order, [5, 3, 1]);
  const letters = await collect(channel, dead, 3);
  const death = letters[0].properties.headers["x-death"][0];
  assert.deepEqual([death.queue, death.reason, death.count], [queue, "rejected", 1]);
});

await check("a channel error leaves the connection", async (connection) => {
  const channel = await connection.createChannel();
  const error = once(channel, "error");
  await assert.rejects(channel.checkQueue("node-missing"), /404/);
  assert.equal((await error).code, 404);
  const other = await connection.createChannel();
  await other.assertQueue("", { exclusive: true });
});

await check("cancelled by delete", async (connection) => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue("node-cancelled", { durable: false });
  const cancelled = new Promise((resolve) => { channel.consume(queue, (m) => { if (m === null) resolve(); }); });
  await (await connection.createChannel()).deleteQueue(queue);
  await cancelled;
});

await check("large bodies", async (connection) => {
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  const body = Buffer.alloc(5_000_000, "clusterbroker ");
  channel.sendToQueue(queue, body);
  await channel.waitForConfirms();
  const [message] = await collect(channel, queue, 1);
  assert.ok(message.content.equals(body));
});

await check("update-secret", async (connection) => {
  await connection.updateSecret(Buffer.from("guest"), "a renewed token");
  await (await connection.createChannel()).close();
});

await assert.rejects(amqp.connect(url.replace("guest:guest", "guest:wrong")), /403|ACCESS_REFUSED|closed/);
checks += 1;

clearTimeout(timeout);
console.log(`amqplib ${require("amqplib/package.json").version}: ${checks} checks held`);
