// rhea against a started node; amqp10_queues.py says what the environment has. Exits with 0, and says how many checks
// held.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(process.env.INTEROP_MODULES + "/");
const rhea = require("rhea");
const { hostname: host, port, username, password } = new URL(process.env.AMQP_URL);
let checks = 0;
let doing = "";

const timeout = setTimeout(() => {
  console.error(`rhea: ${doing}: not finished after 50 s`);
  process.exit(1);
}, 50_000);

const queue = (key) => "/queues/" + encodeURIComponent(process.env[key]);
const once = (emitter, event) => new Promise((resolve) => emitter.once(event, resolve));
const bytes = (text) => rhea.message.data_section(Buffer.from(text));

function connect(options = {}) {
  return rhea.create_container().connect({ host, port, username, password, reconnect: false, ...options });
}

async function check(name, work) {
  doing = name;
  const connection = connect();
  connection.on("error", (error) => { throw error; });
  try {
    await once(connection, "connection_open");
    await work(connection);
    connection.close();
    await once(connection, "connection_close");
    checks += 1;
  } catch (error) {
    console.error(`rhea: ${name}: ${error.stack}`);
    process.exit(1);
  }
}

// One delivery after the other, each with its outcome.
async function send(connection, target, ...messages) {
  const sender = connection.open_sender({ target, autosettle: true, treat_modified_as_released: false });
  const outcomes = [];
  if (!sender.sendable()) await once(sender, "sendable");
  for (const message of messages) {
    const outcome = new Promise((resolve) => {
      for (const event of ["accepted", "released", "rejected"]) sender.once(event, () => resolve(event));
    });
    sender.send(message);
    outcomes.push(await outcome);
    sender.removeAllListeners();
  }
  sender.close();
  await once(sender, "sender_close");
  return outcomes;
}

// A receiver that gives messages one by one; its caller grants the credit.
function receive(connection, source, options = {}) {
  const receiver = connection.open_receiver({ source, credit_window: 0, autoaccept: false, ...options });
  const come = [], waiting = [];
  receiver.on("message", (context) => {
    if (waiting.length) waiting.shift()(context); else come.push(context);
  });
  receiver.next = () => come.length ? Promise.resolve(come.shift()) : new Promise((resolve) => waiting.push(resolve));
  receiver.come = come;
  receiver.over = async () => { receiver.close(); await once(receiver, "receiver_close"); };
  return receiver;
}

// By drain: the broker gives up the credit when nothing is ready.
async function isEmpty(connection, source) {
  const receiver = receive(connection, source);
  receiver.add_credit(10);
  receiver.drain_credit();
  await once(receiver, "receiver_drained");
  assert.equal(receiver.credit, 0);
  await receiver.over();
  return receiver.come.length === 0;
}

await check("unsettled and settled", async (connection) => {
  const numbers = [...Array(100).keys()];
  const outcomes = await send(connection, queue("PLAIN"), ...numbers.map((n) => ({ body: bytes(String(n)) })));
  assert.deepEqual(new Set(outcomes), new Set(["accepted"]));
  const settled = connection.open_sender({ target: queue("PLAIN"), snd_settle_mode: 1 });
  await once(settled, "sendable");
  for (const n of numbers) settled.send({ body: bytes(String(n + 100)) });
  const receiver = receive(connection, queue("PLAIN"), { credit_window: 20 });
  for (let n = 0; n < 200; n++) {
    const { message, delivery } = await receiver.next();
    assert.equal(message.body.content.toString(), String(n));
    delivery.accept();
  }
  await receiver.over();
  assert.ok(await isEmpty(connection, queue("PLAIN")));
});

await check("many in flight", async (connection) => {
  const sender = connection.open_sender(queue("PLAIN"));
  let sent = 0, accepted = 0;
  await new Promise((resolve) => {
    sender.on("sendable", () => {
      for (; sent < 5000 && sender.sendable(); sent++) sender.send({ durable: true, body: sent });
    });
    sender.on("accepted", () => { accepted += 1; if (accepted === 5000) resolve(); });
  });
  const receiver = receive(connection, queue("PLAIN"), { snd_settle_mode: 1, credit_window: 500 });
  for (let n = 0; n < 5000; n++) {
    const { message, delivery } = await receiver.next();
    assert.equal(message.body, n);
    delivery.accept(); // settled before: nothing is sent, but rhea makes room in its session's window
  }
  await receiver.over();
  assert.ok(await isEmpty(connection, queue("PLAIN")));
});

await check("selector and browser", async (connection) => {
  const numbers = [...Array(6).keys()];
  const messages = numbers.map((n) => ({ body: n, application_properties: { n, color: n % 2 ? "blue" : "red" } }));
  await send(connection, queue("PLAIN"), ...messages);
  const browser = receive(connection, { address: queue("PLAIN"), distribution_mode: "copy" }, { credit_window: 10 });
  for (const n of numbers) assert.equal((await browser.next()).message.body, n);
  await browser.over();
  const filter = rhea.filter.selector("color = 'red' AND n <> 0");
  const red = receive(connection, { address: queue("PLAIN"), filter }, { credit_window: 10 });
  for (const n of [2, 4]) {
    const { message, delivery } = await red.next();
    assert.equal(message.body, n);
    delivery.accept();
  }
  await red.over();
  const rest = receive(connection, queue("PLAIN"), { credit_window: 10 });
  for (const n of [0, 1, 3, 5]) {
    const { message, delivery } = await rest.next();
    assert.equal(message.body, n);
    delivery.accept();
  }
  await rest.over();
  assert.ok(await isEmpty(connection, queue("PLAIN")));
});

await check("release, modify, accept", async (connection) => {
  await send(connection, queue("PLAIN"), { body: "again" });
  let receiver = receive(connection, queue("PLAIN"));
  const seen = [];
  for (const outcome of [{}, { delivery_failed: true }, null]) {
    receiver.add_credit(1);
    const { message, delivery } = await receiver.next();
    seen.push([message.first_acquirer, message.delivery_count ?? 0]);
    if (outcome === null) break;
    if (outcome.delivery_failed) delivery.modified(outcome); else delivery.release();
  }
  assert.deepEqual(seen, [[true, 0], [false, 0], [false, 1]]);
  await receiver.over(); // unsettled: it returns
  receiver = receive(connection, queue("PLAIN"));
  receiver.add_credit(1);
  (await receiver.next()).delivery.accept();
  await receiver.over();
  assert.ok(await isEmpty(connection, queue("PLAIN")));
});

await check("rcv-settle-mode second", async (connection) => {
  await send(connection, queue("PLAIN"), { body: "twice", durable: true });
  const receiver = receive(connection, queue("PLAIN"), { rcv_settle_mode: 1, autosettle: true });
  receiver.add_credit(1);
  const { delivery } = await receiver.next();
  const settled = once(receiver, "settled");
  delivery.accept();
  await settled;
  await receiver.over();
  assert.ok(await isEmpty(connection, queue("PLAIN")));
});

await check("reject", async (connection) => {
  await send(connection, queue("REJECTING"), { body: bytes("bad"), subject: "s" });
  const receiver = receive(connection, queue("REJECTING"));
  receiver.add_credit(1);
  (await receiver.next()).delivery.reject({ condition: "app:bad", description: "no good" });
  const dead = receive(connection, queue("DEAD"));
  dead.add_credit(1);
  const { message, delivery } = await dead.next();
  assert.equal(message.body.content.toString(), "bad");
  assert.equal(message.subject, "s");
  const [death] = message.message_annotations["x-opt-deaths"];
  assert.deepEqual([death.queue, death.reason, Number(death.count)], [process.env.REJECTING, "rejected", 1]);
  delivery.accept();
  await dead.over();
});

await check("large", async (connection) => {
  const body = Buffer.alloc(1_000_000, "clusterbroker ");
  const small = connect({ max_frame_size: 2048 });
  await once(small, "connection_open");
  assert.deepEqual(await send(small, queue("PLAIN"), { body: rhea.message.data_section(body) }), ["accepted"]);
  for (const from of [small, connection]) {
    const receiver = receive(from, queue("PLAIN"));
    receiver.add_credit(1);
    const { message, delivery } = await receiver.next();
    assert.ok(message.body.content.equals(body));
    if (from === small) delivery.release(); else delivery.accept();
    await receiver.over();
  }
  small.close();
  assert.ok(await isEmpty(connection, queue("PLAIN")));
});

await check("properties and values", async (connection) => {
  const { types } = rhea;
  const sent = {
    durable: true, priority: 9, ttl: 60_000, message_id: "m-1", user_id: "guest", to: queue("PLAIN"),
    subject: "subject", reply_to: "/queues/answers", correlation_id: "c-1", content_type: "application/x",
    content_encoding: "none", creation_time: new Date(1700000000500), group_id: "group", group_sequence: 3,
    reply_to_group_id: "other", message_annotations: { "x-own": "kept" },
    application_properties: { text: "ü", n: -7, big: 2 ** 40, f: 1.5, yes: true },
    body: { a: [1, 2.5, null, true], "ü": { deep: "text" } },
  };
  const receiver = receive(connection, queue("PLAIN"), { credit_window: 1 });
  await send(connection, queue("PLAIN"), sent);
  const { message, delivery } = await receiver.next();
  delivery.accept();
  for (const name of Object.keys(sent)) {
    if (!["ttl", "user_id", "message_annotations"].includes(name)) assert.deepEqual(message[name], sent[name], name);
  }
  assert.equal(message.user_id.toString(), "guest");
  assert.ok(message.ttl > 0 && message.ttl <= 60_000);
  assert.deepEqual(message.message_annotations,
    { "x-own": "kept", "x-exchange": "", "x-routing-key": process.env.PLAIN });
  const sequence = rhea.message.sequence_section([1, "a"]);
  for (const body of ["text", 5, null, types.wrap_list([1, "a"]), sequence]) {
    assert.deepEqual(await send(connection, queue("PLAIN"), { body }), ["accepted"]);
    const got = await receiver.next();
    got.delivery.accept();
    if (body === sequence) assert.deepEqual([got.message.body.typecode, got.message.body.content], [0x76, [1, "a"]]);
    else assert.deepEqual(got.message.body, body !== null && typeof body === "object" ? [1, "a"] : body);
  }
});

await check("exchanges, no route, anonymous", async (connection) => {
  assert.deepEqual(await send(connection, "/exchanges/amq.topic/rhea.missing", { body: 1 }), ["released"]);
  const messages = [{ to: queue("PLAIN"), body: 1 }, { to: queue("MISSING"), body: 1 }];
  const [first, second] = await send(connection, {}, ...messages);
  assert.equal(first, "accepted");
  assert.match(second, /released|rejected/);
  const receiver = receive(connection, queue("PLAIN"));
  receiver.add_credit(1);
  (await receiver.next()).delivery.accept();
});

await check("not found", async (connection) => {
  for (const open of [() => connection.open_sender(queue("MISSING")), () => receive(connection, queue("MISSING"))]) {
    const link = open();
    await once(link, link.is_sender() ? "sender_error" : "receiver_error");
    assert.equal(link.error.condition, "amqp:not-found");
    assert.ok(link.error.description.includes(process.env.MISSING));
  }
  assert.ok(await isEmpty(connection, queue("PLAIN"))); // the session goes on
});

await check("odd name", async (connection) => {
  await send(connection, queue("ODD"), { body: "odd" });
  const receiver = receive(connection, queue("ODD"));
  receiver.add_credit(1);
  const { message, delivery } = await receiver.next();
  assert.equal(message.body, "odd");
  delivery.accept();
});

await check("from pika", async (connection) => {
  const receiver = receive(connection, queue("FROM_PIKA"));
  receiver.add_credit(1);
  const { message, delivery } = await receiver.next();
  delivery.accept();
  assert.equal(message.body.content.toString(), "from pika");
  assert.deepEqual([message.durable, message.priority, message.content_type], [true, 7, "text/plain"]);
  assert.deepEqual([message.message_id, message.correlation_id, message.reply_to], ["m-0", "c-0", "/queues/answers"]);
  assert.deepEqual([Number(message.creation_time), message.group_id], [1700000000000, "pika"]);
  assert.deepEqual(message.application_properties, { text: "ü", n: 7, big: 2 ** 40, yes: true });
});

await check("to pika", async (connection) => {
  const message = {
    durable: true, priority: 6, content_type: "application/octet-stream", correlation_id: "c-1",
    reply_to: "/queues/answers", application_properties: { text: "ü", n: 7, yes: true }, body: bytes("to pika"),
  };
  assert.deepEqual(await send(connection, queue("TO_PIKA"), message), ["accepted"]);
});

const refused = connect({ password: "wrong" });
refused.on("disconnected", () => {}); // told after the error
const { error } = await once(refused, "connection_error");
assert.equal(error.condition, "amqp:unauthorized-access");
checks += 1;

clearTimeout(timeout);
console.log(`rhea ${require("rhea/package.json").version}: ${checks} checks held`);
