import type { Channel, Me, Page } from "../api";
import { may, path, rate } from "../api";
import { number, perSecond } from "../format";
import { useLive, usePlace } from "../live";
import { Empty, Filter, Pager, Panel, Pill, Table, Waiting } from "../ui";
import { VhostChoice, useVhost } from "../vhost_choice";
import { useVhosts } from "../vhosts";
import { ChannelLink } from "./connection";

const SIZE = 50;

/** All channels and sessions; who does not monitor sees those of its own connections. */
export function Channels({ me }: { me: Me }) {
  const { query } = usePlace();
  const name = query.get("name") ?? "";
  const sort = query.get("sort") ?? "";
  const reverse = query.get("reverse") === "1";
  const page = Number(query.get("page") ?? 1);
  const vhosts = useVhosts();
  const vhost = useVhost(vhosts);
  const asked = new URLSearchParams({ page: String(page), page_size: String(SIZE), name, sort, sort_reverse: String(reverse) });
  const live = useLive<Page<Channel & { connection_details?: { name: string } }>>(`${vhost ? `vhosts/${path(vhost)}/channels` : "channels"}?${asked}`);
  const found = live.value;
  return (
    <>
      <div class="title">
        <h1>Channels</h1>
        <Filter label="Filter by name" value={name} />
        <VhostChoice vhosts={vhosts} vhost={vhost} />
        {!may(me, "monitoring") && <span class="sub">your own</span>}
      </div>
      <Waiting live={live} />
      {found && found.total_count === 0 && (
        <Panel>
          <Empty title="No channels">A client opens one, or a session of AMQP 1.0, before it publishes or consumes.</Empty>
        </Panel>
      )}
      {found && found.total_count > 0 && (
        <Panel>
          {found.items.length === 0 ? (
            <Empty title={`No channel has “${name}” in its name`}>Change the filter, or clear it to see all {number(found.total_count)}.</Empty>
          ) : (
            <Table
              label="Channels"
              items={found.items}
              id={(channel) => channel.name}
              sort={sort}
              reverse={reverse}
              columns={[
                {
                  title: "Channel",
                  sort: "name",
                  cell: (channel) => <ChannelLink of={{ name: channel.name, number: channel.number, ...(channel.connection_details && { connection_name: channel.connection_details.name }) }} />,
                },
                { title: "User", sort: "user", cell: (channel) => channel.user },
                { title: "Vhost", sort: "vhost", wide: true, cell: (channel) => channel.vhost },
                { title: "Node", sort: "node", wide: true, cell: (channel) => channel.node },
                { title: "State", sort: "state", cell: (channel) => <Pill kind={channel.state === "running" || channel.state === "idle" ? "good" : "warn"}>{channel.state}</Pill> },
                { title: "Mode", wide: true, cell: mode },
                { title: "Consumers", sort: "consumer_count", number: true, cell: (channel) => number(channel.consumer_count) },
                { title: "Prefetch", sort: "prefetch_count", number: true, wide: true, cell: (channel) => number(channel.prefetch_count) },
                { title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (channel) => number(channel.messages_unacknowledged) },
                { title: "Unconfirmed", sort: "messages_unconfirmed", number: true, wide: true, cell: (channel) => number(channel.messages_unconfirmed) },
                { title: "In", number: true, wide: true, cell: (channel) => perSecond(rate(channel.message_stats, "publish")) },
                { title: "Out", number: true, wide: true, cell: (channel) => perSecond(rate(channel.message_stats, "deliver_get")) },
              ]}
            />
          )}
          <Pager page={page} pages={found.page_count} found={found.filtered_count} total={found.total_count} what="channels" />
        </Panel>
      )}
    </>
  );
}

const mode = (channel: Channel) => (channel.transactional ? "tx" : channel.confirm ? "confirms" : "");
