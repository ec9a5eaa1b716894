import { useState } from "preact/hooks";
import type { Binding, Exchange, Kind, Me, Page, Queue } from "../api";
import { count, del, exchangeInPath, path, post, put, rate } from "../api";
import { Bindings } from "../bindings";
import { Browse } from "../browse";
import { Chart } from "../chart";
import { bytes, number, perSecond, plural } from "../format";
import { link, useLive, usePlace } from "../live";
import type { Entry } from "../moves";
import { TimelinePanel } from "../timeline";
import { useRange } from "../range";
import { settingFields, settingsOf } from "../settings";
import { Copies, Empty, Facts, Filter, Form, Head, Json, Pager, Panel, Pill, Sure, Table, Waiting, attempt, table } from "../ui";
import { VhostChoice, listed, useVhost } from "../vhost_choice";
import { changer, lacking, useVhosts, useVhostsToDeclareIn } from "../vhosts";
import { ChannelLink } from "./connection";
import { DEPTHS, RATES } from "./overview";

const COLUMNS =
  "name,vhost,state,type,durable,exclusive,auto_delete,owner,epoch,replicas,in_sync,policy,consumers,messages,messages_ready,messages_unacknowledged," +
  "message_bytes,message_stats.publish_details.rate,message_stats.deliver_get_details.rate";
const SIZE = 50;

export function queueState(queue: Queue) {
  if (queue.owner === null) return <Pill kind="bad">no leader</Pill>;
  if (queue.paused) return <Pill kind="warn">paused</Pill>;
  if (queue.state !== "running" && queue.state !== "idle") return <Pill kind="warn">{queue.state}</Pill>;
  return queue.in_sync.length < queue.replicas.length ? <Pill kind="warn">replicas behind</Pill> : <Pill kind="good">running</Pill>;
}

function features(queue: Queue): string {
  const found = [queue.durable ? "durable" : "transient"];
  if (queue.exclusive) found.push("exclusive");
  if (queue.auto_delete) found.push("auto-delete");
  return found.join(", ");
}

export function Queues({ me }: { me: Me }) {
  const { query } = usePlace();
  const name = query.get("name") ?? "";
  const sort = query.get("sort") ?? "";
  const reverse = query.get("reverse") === "1";
  const page = Number(query.get("page") ?? 1);
  const vhosts = useVhosts();
  const asked = new URLSearchParams({ page: String(page), page_size: String(SIZE), columns: COLUMNS, name, sort, sort_reverse: String(reverse) });
  const vhost = useVhost(vhosts);
  const live = useLive<Page<Queue>>(`${listed("queues", vhost)}?${asked}`);
  const declarable = useVhostsToDeclareIn(me);
  const changes = declarable.length > 0;
  const found = live.value;
  return (
    <>
      <div class="title">
        <h1>Queues</h1>
        <Filter label="Filter by name" value={name} />
        <VhostChoice vhosts={vhosts} vhost={vhost} />
      </div>
      <Waiting live={live} />
      {found && found.total_count === 0 && (
        <Empty title="No queues yet">{changes ? "Declare the first one below, or from a client." : "A client with a permission to configure may declare one."}</Empty>
      )}
      {found && found.total_count > 0 && (
        <Panel>
          {found.items.length === 0 ? (
            <Empty title={`No queue has “${name}” in its name`}>Change the filter, or clear it to see all {number(found.total_count)}.</Empty>
          ) : (
            <Table
              label="Queues"
              items={found.items}
              id={(queue) => `${queue.vhost} ${queue.name}`}
              sort={sort}
              reverse={reverse}
              columns={[
                ...(vhosts.length > 1 ? [{ title: "Vhost", sort: "vhost", cell: (queue: Queue) => queue.vhost }] : []),
                {
                  title: "Name",
                  sort: "name",
                  cell: (queue) => (
                    <a class="name" href={link("queues", queue.vhost, queue.name)}>
                      {queue.name}
                    </a>
                  ),
                },
                { title: "Type", sort: "type", wide: true, cell: (queue) => queue.type },
                { title: "State", cell: queueState },
                { title: "Replicas", cell: (queue) => <Copies owner={queue.owner} replicas={queue.replicas} inSync={queue.in_sync} /> },
                { title: "Ready", sort: "messages_ready", number: true, cell: (queue) => number(queue.messages_ready) },
                { title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (queue) => number(queue.messages_unacknowledged) },
                { title: "Size", sort: "message_bytes", number: true, wide: true, cell: (queue) => bytes(queue.message_bytes) },
                { title: "In", sort: "message_stats.publish_details.rate", number: true, wide: true, cell: (queue) => perSecond(rate(queue.message_stats, "publish")) },
                { title: "Out", sort: "message_stats.deliver_get_details.rate", number: true, wide: true, cell: (queue) => perSecond(rate(queue.message_stats, "deliver_get")) },
                { title: "Consumers", sort: "consumers", number: true, wide: true, cell: (queue) => number(queue.consumers) },
                { title: "Policy", wide: true, cell: (queue) => queue.policy ?? "" },
              ]}
            />
          )}
          <Pager page={page} pages={found.page_count} found={found.filtered_count} total={found.total_count} what="queues" />
        </Panel>
      )}
      {changes && (
        <Panel title="Declare a queue">
          <Form
            label="Declare a queue"
            button="Declare"
            fields={[
              { name: "vhost", label: "Vhost", options: declarable },
              { name: "name", label: "Name", required: true },
              { name: "durable", label: "Durability", options: [["yes", "on disk (durable)"], ["no", "in memory (transient)"]] },
              { name: "x-queue-type", label: "Type", options: [["", "the vhost's default"], "classic", "quorum", "stream"].map((one) => (typeof one === "string" ? [one, one] : one) as [string, string]) },
              ...settingFields("x-"),
            ]}
            submit={async (values, attempt) => {
              const type = values["x-queue-type"] ? { "x-queue-type": values["x-queue-type"] } : {};
              const well = await attempt(
                async () =>
                  put(`queues/${path(values["vhost"]!, values["name"]!)}`, { durable: values["durable"] === "yes", arguments: { ...type, ...settingsOf("x-", values) } }),
                `Queue ${values["name"]} is declared.`,
              );
              if (well) live.again();
              return well;
            }}
          />
        </Panel>
      )}
    </>
  );
}

export function QueuePage({ me, vhost, name }: { me: Me; vhost: string; name: string }) {
  const at = `queues/${path(vhost, name)}`;
  const { curves, choice, range } = useRange(3_600);
  const live = useLive<Queue>(`${at}?${curves}`);
  const bindings = useLive<Binding[]>(`${at}/bindings`);
  const moves = useLive<Page<Entry>>(`${at}/moves?page=1&page_size=100`);
  const changes = changer(me);
  const byDefault = useLive<Exchange>(changes ? `exchanges/${path(vhost, exchangeInPath(""))}?columns=may` : "", 30_000);
  const names = useLive<Queue[]>(changes ? `queues/${path(vhost)}?columns=name` : "", 30_000);
  const queue = live.value;
  const away = () => {
    location.hash = link("queues");
  };
  return (
    <>
      <Head kind="queue" list="queues" vhost={vhost} name={name} live={live} pill={queue && queueState(queue)}>
        {choice}
        {queue && changes && (
          <>
            <Pause queue={queue} at={at} then={live.again} />
            {queue.lease && (
              <Sure
                button="End the lease"
                question={`End the lease of ${queue.lease.name}?`}
                detail={`${plural(queue.lease.rows, "message")} return to the queue, marked redelivered, and others may consume. A running reader fails.`}
                deed={() => del(`${at}/lease?name=${encodeURIComponent(queue.lease!.name)}`)}
                done={`${name} has no lease.`}
                refused={lacking(queue.may, name, "configure")}
                then={live.again}
              />
            )}
            <Sure
              button="Purge"
              question={`Purge ${name}?`}
              detail={`${plural(queue.messages_ready ?? 0, "message")} that no consumer holds will be deleted on all replicas. This cannot be undone.`}
              deed={() => del(`${at}/contents`)}
              done={`${name} is empty.`}
              refused={lacking(queue.may, name, "read")}
              then={live.again}
            />
            <Sure
              button="Delete"
              question={`Delete ${name}?`}
              detail={`The queue is deleted with ${plural(queue.messages ?? 0, "message")} and ${plural(queue.consumers ?? 0, "consumer")}. This cannot be undone.`}
              deed={() => del(at)}
              done={`${name} is deleted.`}
              refused={lacking(queue.may, name, "configure")}
              then={away}
            />
          </>
        )}
      </Head>
      {queue && (
        <>
          <div class="columns">
            <Panel>
              <Chart title="Messages waiting" of={queue as never} lines={DEPTHS} range={range} />
            </Panel>
            <Panel>
              <Chart title="Message rates" of={queue.message_stats} lines={RATES} rates range={range} />
            </Panel>
          </div>
          <div class="columns">
            <Panel title="Details">
              <Facts
                of={[
                  ["Messages", `${number(queue.messages)}: ${number(queue.messages_ready)} ready, ${number(queue.messages_unacknowledged)} unacknowledged`],
                  ["Size", bytes(queue.message_bytes)],
                  ...leased(queue),
                  ...streamed(queue),
                  ["Totals since this leader began", `${number(count(queue.message_stats, "publish"))} published, ${number(count(queue.message_stats, "ack"))} acknowledged, ${number(count(queue.message_stats, "redeliver"))} redelivered`],
                  ["Features", features(queue)],
                  ["Policy", queue.policy ? <a href={link("policies")}>{queue.policy}</a> : "none"],
                  ["Operator policy", queue.operator_policy ?? "none"],
                  ["Arguments", <Json of={queue.arguments} />],
                  ["Effective settings", <Explained of={queue.explain ?? {}} />],
                ]}
              />
            </Panel>
            <Panel title="Replicas">
              <CopyTable queue={queue} />
            </Panel>
          </div>
          {queue.replicas.length > 1 && <TimelinePanel title="Leadership" live={moves} nodes={[]} members={queue.replicas} owner={queue.owner} />}
          <div class="columns">
            <Panel title="Consumers">
              {queue.consumer_details?.length ? (
                <Table
                  label="Consumers"
                  items={queue.consumer_details}
                  id={(consumer) => `${consumer.channel_details?.name} ${consumer.consumer_tag}`}
                  columns={[
                    { title: "Tag", cell: (consumer) => <code>{consumer.consumer_tag}</code> },
                    { title: "Channel", cell: (consumer) => <ChannelLink of={consumer.channel_details} /> },
                    { title: "Acknowledges", cell: (consumer) => (consumer.ack_required ? "yes" : "no") },
                    { title: "Prefetch", number: true, cell: (consumer) => number(consumer.prefetch_count) },
                  ]}
                />
              ) : (
                <Empty title="No consumers">Messages wait here until a client consumes.</Empty>
              )}
            </Panel>
            <BindingsHere me={me} queue={queue} bindings={bindings.value ?? []} again={bindings.again} />
          </div>
          {lacking(queue.may, name, "read") === undefined && <Browse at={at} name={name} queues={names.value?.map((one) => one.name) ?? []} take={changes} then={live.again} />}
          {changes && (
            <div class="columns">
              <Publish vhost={vhost} exchange="" routingKey={name} may={byDefault.value?.may} then={live.again} />
              <GetMessages at={at} refused={lacking(queue.may, name, "read")} then={live.again} />
            </div>
          )}
        </>
      )}
    </>
  );
}

function Explained({ of }: { of: Record<string, unknown> }) {
  return Object.keys(of).length ? <Json of={of} /> : <>defaults</>;
}

function CopyTable({ queue }: { queue: Queue }) {
  const rows = queue.replicas.map((node) => ({ node, copy: queue.copies?.find((copy) => copy.node === node) }));
  return (
    <>
      <Table
        label="Replicas"
        items={rows}
        id={(row) => row.node}
        columns={[
          { title: "Node", cell: (row) => <b>{row.node}</b> },
          {
            title: "Role",
            cell: (row) =>
              row.node === queue.owner ? <Pill kind="good">leader</Pill> : queue.in_sync.includes(row.node) ? <Pill kind="plain">in sync</Pill> : <Pill kind="warn">behind</Pill>,
          },
          { title: "Lag", number: true, cell: (row) => (row.node === queue.owner ? "" : row.copy ? `${plural(row.copy.records_behind, "record")}, ${bytes(row.copy.bytes_behind)}` : "not known") },
        ]}
      />
      <p class="note">
        Epoch {queue.epoch}, one more with each new leader. A confirm waits for every replica in sync.
      </p>
    </>
  );
}

function BindingsHere(props: { me: Me; queue: Queue; bindings: Binding[]; again: () => void }) {
  const { name, vhost, may } = props.queue;
  const changes = changer(props.me);
  const exchanges = useLive<Exchange[]>(changes ? `exchanges/${path(vhost)}?columns=name,internal` : "", 30_000);
  const from = (exchange: string) => `bindings/${path(vhost)}/e/${path(exchange)}/q/${path(name)}`;
  const named = (exchanges.value ?? []).map((exchange) => exchange.name).filter((name) => name !== "");
  return (
    <Bindings
      title="Bindings"
      bindings={props.bindings.filter((binding) => binding.source !== "")}
      other={{
        columns: [{ title: "From", cell: (binding) => <a href={link("exchanges", binding.vhost, binding.source)}>{binding.source}</a> }],
        name: (binding) => binding.source,
        path: (binding) => from(exchangeInPath(binding.source)),
        fields: [{ name: "source", label: "From exchange", options: named }],
        chosen: (values) => ({ name: values["source"]!, path: from(values["source"]!) }),
      }}
      unbind="Unbind from"
      detail="Its messages no longer reach this queue."
      empty={{ title: "Bound to no exchange", text: "Messages arrive by the default exchange, with the queue's name as routing key." }}
      changes={changes}
      refused={lacking(may, name, "write")}
      again={props.again}
    />
  );
}

function leased({ lease }: Queue): [string, string][] {
  if (!lease) return [];
  return [["Lease", `“${lease.name}” has ${plural(lease.rows, "message")}, ${number(lease.start)} to ${number(lease.end - 1)}; expires ${lease.until} without a request`]];
}

function streamed({ stream, stored_offsets: readers = [] }: Queue): [string, string][] {
  if (!stream) return [];
  const oldest = stream.oldest ? `, the oldest of ${stream.oldest}` : "";
  return [
    ["Offsets", `${number(stream.first_offset)} first, ${number(stream.next_offset)} next`],
    ["Files", `${plural(stream.files, "file")}, ${bytes(stream.file_bytes)}${oldest}`],
    ...readers.map(({ name, offset, lag }): [string, string] => [`Reader ${name}`, `at ${number(offset)}, ${number(lag)} from the end`]),
  ];
}

function Pause({ queue, at, then }: { queue: Queue; at: string; then: () => void }) {
  const refused = lacking(queue.may, queue.name, "configure");
  const turn = async (verb: "pause" | "resume", done: string) => {
    if (await attempt(() => put(`${at}/${verb}`, {}), done)) then();
  };
  return queue.paused ? (
    <button type="button" class="main" disabled={refused !== undefined} title={refused} onClick={() => void turn("resume", `${queue.name} delivers messages again.`)}>
      Resume
    </button>
  ) : (
    <button type="button" disabled={refused !== undefined} title={refused ?? "The queue accepts messages and delivers none"} onClick={() => void turn("pause", `${queue.name} is paused: it accepts messages and delivers none.`)}>
      Pause
    </button>
  );
}

export function Publish(props: { vhost: string; exchange: string; routingKey: string; may: Kind[] | undefined; then: () => void }) {
  return (
    <Panel title="Publish a message">
      <Form
        label="Publish a message"
        button="Publish"
        refused={lacking(props.may, props.exchange, "write")}
        keep
        fields={[
          { name: "routing_key", label: "Routing key", value: props.routingKey },
          { name: "delivery_mode", label: "Delivery mode", options: [["2", "on disk (persistent)"], ["1", "in memory (transient)"]] },
          { name: "headers", label: "Headers", placeholder: "{}", hint: "JSON; empty for none" },
          { name: "payload", label: "Payload", kind: "area" },
        ]}
        submit={(values) =>
          attempt(async () => {
            const sent = {
              routing_key: values["routing_key"],
              payload: values["payload"],
              payload_encoding: "string",
              properties: { delivery_mode: Number(values["delivery_mode"]), headers: table(values["headers"]!) },
            };
            const answer = await post<{ routed: boolean }>(`exchanges/${path(props.vhost, exchangeInPath(props.exchange))}/publish`, sent);
            if (!answer.routed) throw new Error("The message reached no queue: no binding matches this routing key.");
            props.then();
          }, "Published and routed.")
        }
      />
    </Panel>
  );
}

interface Got {
  payload: string;
  payload_encoding: string;
  payload_bytes: number;
  exchange: string;
  routing_key: string;
  redelivered: boolean;
  message_count: number;
  properties: Record<string, unknown>;
}

function GetMessages(props: { at: string; refused: string | undefined; then: () => void }) {
  const [got, setGot] = useState<Got[] | null>(null);
  return (
    <Panel title="Get messages">
      <Form
        label="Get messages"
        button="Get"
        refused={props.refused}
        keep
        fields={[
          { name: "count", label: "How many", kind: "number", value: "1" },
          {
            name: "ackmode",
            label: "Then the messages",
            options: [
              ["ack_requeue_true", "go back to the queue, marked redelivered"],
              ["ack_requeue_false", "are removed (acknowledged)"],
              ["reject_requeue_false", "are rejected: dead-lettered or removed"],
            ],
          },
        ]}
        submit={(values) =>
          attempt(async () => {
            const asked = { count: Math.max(1, Number(values["count"])), ackmode: values["ackmode"], encoding: "auto", truncate: 50_000 };
            setGot(await post<Got[]>(`${props.at}/get`, asked));
            props.then();
          }, "")
        }
      />
      <div aria-live="polite">
        {got && got.length === 0 && <Empty title="The queue gave no message">The queue is empty, or consumers hold its messages.</Empty>}
        {got?.map((message, place) => (
          <article class="message" key={place}>
            <header>
              <span>
                {message.exchange || "(default exchange)"} → <code>{message.routing_key}</code>
              </span>
              <span>
                {bytes(message.payload_bytes)}
                {message.redelivered ? ", redelivered" : ""}
                {message.payload_encoding === "base64" ? ", base64" : ""}
              </span>
            </header>
            {Object.keys(message.properties).length > 0 && <Json of={message.properties} />}
            <pre>{message.payload}</pre>
          </article>
        ))}
      </div>
    </Panel>
  );
}
