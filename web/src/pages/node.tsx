import type { Node, Page, Queue } from "../api";
import { path } from "../api";
import { bytes, number, span } from "../format";
import { link, useLive, usePlace } from "../live";
import { Facts, Head, Pager, Panel, Pill, Table } from "../ui";
import { nodeState } from "./overview";
import { queueState } from "./queues";

const SIZE = 50;
const COLUMNS = "name,vhost,state,type,owner,epoch,replicas,in_sync,messages";

/** One member: what it says of itself, its listeners and links, its alerts, and the queues that it leads. */
export function NodePage({ name }: { name: string }) {
  const live = useLive<Node>(`nodes/${path(name)}`);
  const { query } = usePlace();
  const page = Number(query.get("page") ?? 1);
  const asked = new URLSearchParams({ page: String(page), page_size: String(SIZE), columns: COLUMNS, leader: name, sort: "name" });
  const queues = useLive<Page<Queue>>(`queues?${asked}`);
  const node = live.value;
  const found = queues.value;
  return (
    <>
      <Head kind="node" list="cluster" vhost={undefined} name={name} live={live} pill={node && nodeState(node)} />
      {node && (
        <>
          <div class="columns">
            <Panel title="Details">
              <Facts
                of={[
                  ["Version", node.version ?? "–"],
                  ["Up", span(node.uptime)],
                  ["Process", node.os_pid ?? "–"],
                  ["Processors", number(node.processors)],
                  ["Data directory", node.db_dir ? <code>{node.db_dir}</code> : "none, in memory"],
                  ["Configuration", node.config_files?.length ? <code>{node.config_files.join(", ")}</code> : "none"],
                  ["Queues", `${number(node.owned_queues)} led, ${number(node.held_queues)} replicated`],
                  ["Lease", node.lease_left_ms === undefined ? "–" : `${number(node.lease_left_ms)} ms left`],
                  ["Metadata index", number(node.wiring_index)],
                ]}
              />
            </Panel>
            <Panel title="Resources">
              <Facts
                of={[
                  ["Memory", `${bytes(node.mem_used)}${node.mem_limit ? ` of ${bytes(node.mem_limit)}` : ", no limit"}`],
                  ["Disk free", `${bytes(node.disk_free)}, ${node.disk_free_limit ? `alarm below ${bytes(node.disk_free_limit)}` : "no alarm"}`],
                  ["Files", `${number(node.fd_used)} of ${number(node.fd_total)}`],
                  ["Connections", `${number(node.sockets_used)} of ${number(node.sockets_total)}`],
                  ["Journal", bytes(node.journal_bytes)],
                  ["Flush", node.io_sync_avg_time === undefined ? "–" : `${node.io_sync_avg_time.toFixed(2)} ms on average`],
                  ["Loop lag", node.loop_lag_ms === undefined ? "–" : `${node.loop_lag_ms.toFixed(1)} ms`],
                ]}
              />
            </Panel>
          </div>
          {!!node.alerts?.length && (
            <Panel title="Alerts">
              <Table
                label="Alerts"
                items={node.alerts}
                id={(alert) => `${alert.kind} ${alert.subject}`}
                columns={[
                  { title: "Kind", cell: (alert) => <Pill kind="warn">{alert.kind}</Pill> },
                  { title: "Fault", cell: (alert) => alert.text },
                ]}
              />
            </Panel>
          )}
          {!!node.cluster_links?.length && (
            <Panel title="Links to other members">
              <Table
                label="Links to other members"
                items={node.cluster_links}
                id={(one) => one.name}
                columns={[
                  { title: "Member", cell: (one) => <a href={link("cluster", one.name)}>{one.name}</a> },
                  { title: "State", cell: (one) => <Pill kind={one.up ? "good" : "bad"}>{one.up ? "up" : "down"}</Pill> },
                  { title: "Sent", number: true, cell: (one) => bytes(one.stats.send_bytes) },
                  { title: "Received", number: true, cell: (one) => bytes(one.stats.recv_bytes) },
                ]}
              />
            </Panel>
          )}
        </>
      )}
      {found && found.filtered_count > 0 && (
        <Panel title="Queues led here">
          <Table
            label="Queues led here"
            items={found.items}
            id={(queue) => `${queue.vhost} ${queue.name}`}
            columns={[
              { title: "Vhost", cell: (queue) => queue.vhost },
              {
                title: "Name",
                cell: (queue) => (
                  <a class="name" href={link("queues", queue.vhost, queue.name)}>
                    {queue.name}
                  </a>
                ),
              },
              { title: "Type", wide: true, cell: (queue) => queue.type },
              { title: "State", cell: queueState },
              { title: "Messages", number: true, cell: (queue) => number(queue.messages) },
            ]}
          />
          <Pager page={page} pages={found.page_count} found={found.filtered_count} total={found.total_count} what="queues" />
        </Panel>
      )}
    </>
  );
}
