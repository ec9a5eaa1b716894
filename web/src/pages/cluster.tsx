import type { Node, Page, Queue } from "../api";
import { bytes, number, plural, span } from "../format";
import { link, useLive, usePlace } from "../live";
import type { Entry } from "../moves";
import { TimelinePanel } from "../timeline";
import { Copies, Empty, Filter, Pager, Panel, Pill, Table, Waiting } from "../ui";
import { nodeState } from "./overview";
import { queueState } from "./queues";

const SIZE = 50;
const COLUMNS = "name,vhost,state,owner,epoch,replicas,in_sync,copies,messages";

export function Cluster() {
  const nodes = useLive<Node[]>("nodes");
  const moves = useLive<Page<Entry>>("moves?grouped=true&page=1&page_size=300");
  const { query } = usePlace();
  const name = query.get("name") ?? "";
  const sort = query.get("sort") ?? "";
  const reverse = query.get("reverse") === "1";
  const page = Number(query.get("page") ?? 1);
  const asked = new URLSearchParams({ page: String(page), page_size: String(SIZE), columns: COLUMNS, name, sort, sort_reverse: String(reverse) });
  const queues = useLive<Page<Queue>>(`queues?${asked}`);
  const found = queues.value;
  return (
    <>
      <div class="title">
        <h1>Cluster</h1>
        {nodes.value && <span class="sub">{summary(nodes.value)}</span>}
      </div>
      <Waiting live={nodes} />
      {nodes.value && (
        <div class="members">
          {nodes.value.map((node) => (
            <Member key={node.name} node={node} alone={nodes.value!.length === 1} />
          ))}
        </div>
      )}
      {nodes.value && nodes.value.length > 1 && <TimelinePanel title="Time line" live={moves} nodes={nodes.value} members={nodes.value.map((node) => node.name)} />}
      <Panel title="Queue leaders" side={<Filter label="Filter by name" value={name} />}>
        <Waiting live={queues} />
        {found &&
          (found.items.length === 0 ? (
            <Empty title={found.total_count ? `No queue has “${name}” in its name` : "No queues yet"}>
              {found.total_count ? "Change the filter." : <a href={link("queues")}>Declare one</a>}
            </Empty>
          ) : (
            <Table
              label="Queue leaders"
              items={found.items}
              id={(queue) => `${queue.vhost} ${queue.name}`}
              sort={sort}
              reverse={reverse}
              columns={[
                {
                  title: "Queue",
                  sort: "name",
                  cell: (queue) => (
                    <a class="name" href={link("queues", queue.vhost, queue.name)}>
                      {queue.name}
                    </a>
                  ),
                },
                { title: "State", cell: queueState },
                { title: "Leader", sort: "owner", cell: (queue) => queue.owner ?? "–" },
                { title: "Epoch", sort: "epoch", number: true, cell: (queue) => number(queue.epoch) },
                { title: "Replicas", cell: (queue) => <Copies owner={queue.owner} replicas={queue.replicas} inSync={queue.in_sync} /> },
                { title: "Largest lag", wide: true, number: true, cell: behind },
                { title: "Messages", sort: "messages", number: true, cell: (queue) => number(queue.messages) },
              ]}
            />
          ))}
        {found && <Pager page={page} pages={found.page_count} found={found.filtered_count} total={found.total_count} what="queues" />}
        <p class="note legend-note">
          <span class="copy owner">leader</span> orders the messages and delivers them; <span class="copy synced">in sync</span> has every confirmed message; <span class="copy behind">behind</span> is catching up.
        </p>
      </Panel>
    </>
  );
}

function summary(nodes: Node[]): string {
  const running = nodes.filter((node) => node.running).length;
  const leader = nodes.find((node) => node.wiring_leader)?.wiring_leader;
  const head = nodes.length === 1 ? "one node, no replicas" : `${running} of ${nodes.length} members running`;
  return leader ? `${head}, ${leader} leads the metadata log` : head;
}

function behind(queue: Queue) {
  const lags = (queue.copies ?? []).filter((copy) => copy.node !== queue.owner);
  if (!lags.length) return "";
  const worst = Math.max(...lags.map((copy) => copy.records_behind));
  return worst ? plural(worst, "record") : "0";
}

function Member({ node, alone }: { node: Node; alone: boolean }) {
  const part = node.witness ? "witness" : node.voter === false ? "learner" : "voter";
  const links = (node.cluster_links ?? []).map((one) => ({ ...one, up: one.up }));
  return (
    <section class="panel member" aria-label={`Member ${node.name}`}>
      <header>
        <h2>
          <a href={link("cluster", node.name)}>{node.name}</a>
        </h2>
        {nodeState(node)}
        {!alone && <Pill>{part}</Pill>}
        {node.wiring_leader === node.name && <Pill kind="plain">metadata leader</Pill>}
      </header>
      <dl class="facts tight">
        <Fact name="Leads / replicates" value={`${number(node.owned_queues)} / ${number(node.held_queues)} queues`} />
        <Fact name="Metadata index" value={number(node.wiring_index)} />
        {!alone && <Fact name="Feature level" value={levels(node)} />}
        {!alone && <Fact name="Lease" value={node.lease_left_ms === undefined ? "–" : `${number(node.lease_left_ms)} ms left`} />}
        <Fact name="Memory" value={bytes(node.mem_used)} />
        <Fact name="Journal" value={bytes(node.journal_bytes)} />
        {node.scrub_percent !== undefined && <Fact name="Scrub" value={scrubbed(node)} bad={!!node.scrub_found} />}
        <Fact name="Up" value={span(node.uptime)} />
        {links.map((one) => (
          <Fact key={one.name} name={`To ${one.name}`} value={one.up ? `${bytes(one.stats.send_bytes)} sent` : "link down"} bad={!one.up} />
        ))}
      </dl>
    </section>
  );
}

function levels(node: Node): string {
  const { feature_level: level, supported_feature_level: supported } = node;
  return level === supported ? number(level) : `${number(level)}, ${number(supported)} supported`;
}

function scrubbed(node: Node): string {
  const found = node.scrub_found ? `, ${number(node.scrub_found)} damaged` : "";
  return (node.scrub_percent! < 100 ? `${node.scrub_percent} % of a pass` : `${number(node.scrub_passes)} passes`) + found;
}

function Fact(props: { name: string; value: string; bad?: boolean }) {
  return (
    <div>
      <dt>{props.name}</dt>
      <dd class={props.bad ? "bad" : ""}>{props.value}</dd>
    </div>
  );
}
