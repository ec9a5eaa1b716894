import type { Me, Node, Overview } from "../api";
import { count, may, rate } from "../api";
import type { Line } from "../chart";
import { Chart } from "../chart";
import { bytes, number, perSecond, plural, span } from "../format";
import { link, useLive } from "../live";
import { useRange } from "../range";
import { Empty, Panel, Pill, Table, Tile, Waiting } from "../ui";

export const DEPTHS: Line[] = [
  { label: "ready", field: "messages_ready", colour: 1 },
  { label: "unacknowledged", field: "messages_unacknowledged", colour: 2 },
];
export const RATES: Line[] = [
  { label: "publish", field: "publish", colour: 1 },
  { label: "deliver", field: "deliver_get", colour: 2 },
  { label: "acknowledge", field: "ack", colour: 3 },
];
const CHURN: Line[] = [
  { label: "opened", field: "connection_created", colour: 1 },
  { label: "closed", field: "connection_closed", colour: 2 },
];

export function OverviewPage({ me }: { me: Me }) {
  const monitors = may(me, "monitoring");
  const { curves, choice, range } = useRange(86_400);
  const live = useLive<Overview>(`overview?${curves}`);
  const nodes = useLive<Node[]>(monitors ? "nodes" : "");
  const seen = live.value;
  const totals = seen?.object_totals ?? {};
  return (
    <>
      <div class="title">
        <h1>{seen?.cluster_name ?? "Overview"}</h1>
        {seen && (
          <span class="sub">
            node {seen.node}, version {seen.product_version}
          </span>
        )}
        {choice}
      </div>
      <Waiting live={live} />
      {seen && (
        <>
          {monitors && nodes.value && <Alarms nodes={nodes.value} />}
          <ul class="tiles" aria-label="Totals">
            <Tile name="Messages" value={number(count(seen.queue_totals, "messages"))} sub={`${number(count(seen.queue_totals, "messages_ready"))} ready`} />
            <Tile name="Published" value={perSecond(rate(seen.message_stats, "publish"))} sub={`${number(count(seen.message_stats, "publish"))} in total`} />
            <Tile name="Delivered" value={perSecond(rate(seen.message_stats, "deliver_get"))} sub={`${number(count(seen.message_stats, "deliver_get"))} in total`} />
            <Tile name="Queues" value={number(totals["queues"])} href={link("queues")} sub={plural(totals["consumers"] ?? 0, "consumer")} />
            <Tile name="Exchanges" value={number(totals["exchanges"])} href={link("exchanges")} />
            <Tile name="Connections" value={number(totals["connections"])} href={link("connections")} sub={plural(totals["channels"] ?? 0, "channel")} />
          </ul>
          <div class="columns">
            <Panel>
              <Chart title="Messages waiting" of={seen.queue_totals} lines={DEPTHS} range={range} />
            </Panel>
            <Panel>
              <Chart title="Message rates" of={seen.message_stats} lines={RATES} rates range={range} />
            </Panel>
          </div>
          {monitors && nodes.value && <Nodes nodes={nodes.value} />}
          <div class="columns">
            <Panel>
              <Chart title="Connections" of={seen.churn_rates} lines={CHURN} rates range={range} />
            </Panel>
            {monitors && <Listeners seen={seen} />}
          </div>
          {totals["queues"] === 0 && (
            <Empty title="No queues yet">
              Connect an AMQP client, or <a href={link("queues")}>declare a queue</a> here.
            </Empty>
          )}
        </>
      )}
    </>
  );
}

const ALERTS_SHOWN = 10;

function Alarms({ nodes }: { nodes: Node[] }) {
  const alarms = nodes.flatMap((node) => (node.alarms ?? []).map((alarm) => ({ node: node.name, alarm })));
  const alerts = nodes.flatMap((node) => (node.alerts ?? []).slice(0, ALERTS_SHOWN).map((alert) => ({ node, ...alert })));
  const down = nodes.filter((node) => !node.running);
  if (!alarms.length && !alerts.length && !down.length) return null;
  return (
    <div class="alarms" role="alert">
      {alarms.map(({ node, alarm }) => (
        <p key={node + alarm}>
          <Pill kind="bad">{alarm} alarm</Pill> Node {node} is short of {alarm}: publishers to its queues wait until the alarm ends.
        </p>
      ))}
      {alerts.map(({ node, kind, subject, text }) => (
        <p key={`${node.name} ${kind} ${subject}`}>
          <Pill kind="warn">{kind}</Pill> {text} <small>(node {node.name})</small>
        </p>
      ))}
      {nodes
        .filter((node) => (node.alerts_count ?? 0) > ALERTS_SHOWN)
        .map((node) => (
          <p key={`${node.name} more`}>
            Node {node.name} has {node.alerts_count! - ALERTS_SHOWN} more alerts: <code>clusterbroker status</code> lists them.
          </p>
        ))}
      {down.map((node) => (
        <p key={node.name}>
          <Pill kind="warn">not running</Pill> Node {node.name} does not answer{node.told_ms_ago === null ? "" : `, the last answer came ${span(node.told_ms_ago)} ago`}.
        </p>
      ))}
    </div>
  );
}

export function nodeState(node: Node) {
  if (!node.running) return <Pill kind="bad">not running</Pill>;
  if (node.alarms?.length) return <Pill kind="bad">{node.alarms.join(", ")} alarm</Pill>;
  if (node.leased === false) return <Pill kind="bad">cut off</Pill>;
  return node.draining ? <Pill kind="warn">draining</Pill> : <Pill kind="good">running</Pill>;
}

function Nodes({ nodes }: { nodes: Node[] }) {
  return (
    <Panel title="Nodes" side={<a href={link("cluster")}>Cluster</a>}>
      <Table
        label="Nodes"
        items={nodes}
        id={(node) => node.name}
        columns={[
          { title: "Name", cell: (node) => <b>{node.name}</b> },
          { title: "State", cell: nodeState },
          { title: "Leads", number: true, cell: (node) => number(node.owned_queues) },
          { title: "Memory", number: true, cell: (node) => <Of used={node.mem_used} limit={node.mem_limit} /> },
          { title: "Disk free", number: true, cell: (node) => bytes(node.disk_free) },
          { title: "Files", number: true, wide: true, cell: (node) => number(node.fd_used) },
          { title: "Loop lag", number: true, wide: true, cell: (node) => (node.loop_lag_ms === undefined ? "–" : `${node.loop_lag_ms.toFixed(1)} ms`) },
          { title: "Up", number: true, wide: true, cell: (node) => span(node.uptime) },
        ]}
      />
    </Panel>
  );
}

function Of({ used, limit }: { used: number | undefined; limit: number | undefined }) {
  return (
    <>
      {bytes(used)}
      {limit ? <small> of {bytes(limit)}</small> : null}
    </>
  );
}

function Listeners({ seen }: { seen: Overview }) {
  return (
    <Panel title="Listeners">
      <Table
        label="Listeners"
        items={seen.listeners}
        id={(one) => `${one.node} ${one.protocol} ${one.ip_address} ${one.port}`}
        columns={[
          { title: "Node", cell: (one) => one.node },
          { title: "Protocol", cell: (one) => one.protocol },
          { title: "Address", cell: (one) => <code>{`${one.ip_address}:${one.port}`}</code> },
        ]}
      />
    </Panel>
  );
}

