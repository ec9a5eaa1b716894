import type { Connection, Me, Page } from "../api";
import { del, may, path } from "../api";
import { bytes, number, span } from "../format";
import { link, useLive, usePlace } from "../live";
import { Empty, Filter, Pager, Panel, Pill, Sure, Table, Waiting } from "../ui";
import { changer } from "../vhosts";
import { SuspendedLinks } from "./suspended";

const SIZE = 50;

export function Connections({ me }: { me: Me }) {
  const { query } = usePlace();
  const name = query.get("name") ?? "";
  const sort = query.get("sort") ?? "";
  const reverse = query.get("reverse") === "1";
  const page = Number(query.get("page") ?? 1);
  const asked = new URLSearchParams({ page: String(page), page_size: String(SIZE), name, sort, sort_reverse: String(reverse) });
  const live = useLive<Page<Connection>>(`connections?${asked}`);
  const found = live.value;
  const all = may(me, "monitoring");
  return (
    <>
      <div class="title">
        <h1>Connections</h1>
        <Filter label="Filter by name" value={name} />
        {!all && <span class="sub">your own</span>}
      </div>
      <Waiting live={live} />
      {found && found.total_count === 0 && <Empty title="No connections">A client connects with the address under Listeners on the overview page.</Empty>}
      {found && found.total_count > 0 && (
        <Panel>
          {found.items.length === 0 ? (
            <Empty title={`No connection has “${name}” in its name`}>Change the filter, or clear it to see all {number(found.total_count)}.</Empty>
          ) : (
            <Table
              label="Connections"
              items={found.items}
              id={(connection) => connection.name}
              sort={sort}
              reverse={reverse}
              columns={[
                { title: "Client", sort: "name", cell: (connection) => <Client connection={connection} /> },
                { title: "User", sort: "user", cell: (connection) => connection.user },
                { title: "Vhost", sort: "vhost", wide: true, cell: (connection) => connection.vhost },
                { title: "Node", sort: "node", cell: (connection) => connection.node },
                { title: "State", sort: "state", cell: (connection) => <Pill kind={connection.state === "running" ? "good" : "warn"}>{connection.state}</Pill> },
                { title: "TLS", wide: true, cell: (connection) => (connection.ssl ? "yes" : "no") },
                { title: "Channels", sort: "channels", number: true, cell: (connection) => number(connection.channels) },
                { title: "In", sort: "recv_oct_details.rate", number: true, wide: true, cell: (connection) => `${bytes(Math.round(connection.recv_oct_details?.rate ?? 0))}/s` },
                { title: "Out", sort: "send_oct_details.rate", number: true, wide: true, cell: (connection) => `${bytes(Math.round(connection.send_oct_details?.rate ?? 0))}/s` },
                { title: "Since", wide: true, number: true, cell: (connection) => span(connection.connected_at ? Date.now() - connection.connected_at : null) },
                {
                  title: "",
                  cell: (connection) =>
                    changer(me) && (
                      <Sure
                        small
                        button="Close"
                        label={`Close ${connection.name}`}
                        question="Close this connection?"
                        detail={`${connection.name}. Unacknowledged messages return to their queues. The client may connect again.`}
                        deed={() => del(`connections/${path(connection.name)}`)}
                        done="The connection is closed."
                        then={live.again}
                      />
                    ),
                },
              ]}
            />
          )}
          <Pager page={page} pages={found.page_count} found={found.filtered_count} total={found.total_count} what="connections" />
        </Panel>
      )}
      <SuspendedLinks me={me} />
    </>
  );
}

function Client({ connection }: { connection: Connection }) {
  const told = connection.client_properties?.connection_name ?? connection.client_properties?.product;
  return (
    <>
      <a class="name" href={link("connections", connection.name)}>
        {told ?? connection.name}
      </a>
      <small class="under">{`${connection.peer_host}:${connection.peer_port}`}</small>
    </>
  );
}
