// One connection with its channels, or its sessions and links, and one channel.
import type { Channel, Connection, Consumer, Me, Session } from "../api";
import { count, del, exchangeInPath, path, rate } from "../api";
import { Chart } from "../chart";
import { bytes, number, perSecond, span } from "../format";
import { link, useLive } from "../live";
import { Empty, Facts, Head, Json, Panel, Pill, Sure, Table } from "../ui";
import { changer } from "../vhosts";
import { useRange } from "../range";
import { RATES } from "./overview";

const limit = (most: number | undefined) => (most ? number(most) : "none");

function State({ of }: { of: string }) {
  return <Pill kind={of === "running" || of === "idle" ? "good" : "warn"}>{of}</Pill>;
}

export function ConnectionPage({ me, name }: { me: Me; name: string }) {
  const at = `connections/${path(name)}`;
  const live = useLive<Connection>(at);
  const channels = useLive<Channel[]>(`${at}/channels`);
  const connection = live.value;
  return (
    <>
      <Head kind="connection" list="connections" vhost={connection?.vhost} name={name} live={live} pill={connection && <State of={connection.state} />}>
        {connection && changer(me) && (
          <Sure
            button="Close"
            question="Close this connection?"
            detail="Unacknowledged messages return to their queues. The client may connect again."
            deed={() => del(at)}
            done="The connection is closed."
            then={() => {
              location.hash = link("connections");
            }}
          />
        )}
      </Head>
      {connection && (
        <>
          <Panel title="Channels">
            {channels.value?.length ? (
              <Table
                label="Channels"
                items={channels.value}
                id={(channel) => channel.name}
                columns={[
                  { title: "Channel", cell: (channel) => <ChannelLink of={{ connection_name: name, number: channel.number }} /> },
                  { title: "State", cell: (channel) => <State of={channel.state} /> },
                  { title: "Mode", wide: true, cell: mode },
                  { title: "Prefetch", number: true, cell: (channel) => limit(channel.prefetch_count) },
                  { title: "Unacked", number: true, cell: (channel) => number(channel.messages_unacknowledged) },
                  { title: "Unconfirmed", number: true, wide: true, cell: (channel) => number(channel.messages_unconfirmed) },
                  { title: "Consumers", number: true, cell: (channel) => number(channel.consumer_count) },
                ]}
              />
            ) : (
              <Empty title="No channel is open">A client opens a channel before any other operation.</Empty>
            )}
          </Panel>
          {connection.container_id != null && <Links at={at} />}
          <Panel title="Details">
            <Facts
              of={[
                ["Client", `${connection.peer_host}:${connection.peer_port}`],
                ["User", connection.user],
                ...(connection.container_id != null ? [["Container", connection.container_id] as [string, string]] : []),
                ["Node", connection.node],
                ["Since", span(connection.connected_at ? Date.now() - connection.connected_at : null)],
                ["Protocol", `${connection.protocol}, ${connection.ssl ? "with TLS" : "without TLS"}, signed in by ${connection.auth_mechanism}`],
                ["Limits", `frames of ${bytes(connection.frame_max)}, ${number(connection.channel_max)} channels, heartbeat ${number(connection.timeout)} s`],
                ["In and out", `${bytes(Math.round(connection.recv_oct_details?.rate ?? 0))}/s, ${bytes(Math.round(connection.send_oct_details?.rate ?? 0))}/s`],
                ["Client properties", <Json of={connection.client_properties ?? {}} />],
              ]}
            />
          </Panel>
        </>
      )}
    </>
  );
}

/** The links of all sessions of a connection of AMQP 1.0. */
function Links({ at }: { at: string }) {
  const sessions = useLive<Session[]>(`${at}/sessions`);
  const links = (sessions.value ?? []).flatMap((session) => [
    ...session.incoming_links.map((one) => ({ ...one, session: session.channel_number, role: "sender", address: one.target_address, unsettled: one.unconfirmed_messages })),
    ...session.outgoing_links.map((one) => ({ ...one, session: session.channel_number, role: "receiver", address: one.source_address, unsettled: one.unsettled_deliveries })),
  ]);
  return (
    <Panel title="Links">
      {links.length ? (
        <Table
          label="Links"
          items={links}
          id={(one) => `${one.session}-${one.handle}`}
          columns={[
            { title: "Link", cell: (one) => <code>{one.link_name}</code> },
            { title: "Client", cell: (one) => `${one.role}, session ${one.session}` },
            { title: "Address", cell: (one) => one.address ?? "each message's own" },
            { title: "Credit", number: true, cell: (one) => number(one.credit) },
            { title: "Unsettled", number: true, cell: (one) => number(one.unsettled) },
            { title: "Deliveries", number: true, wide: true, cell: (one) => number(one.delivery_count) },
          ]}
        />
      ) : (
        <Empty title="No link is attached">A client attaches a link before it sends or receives.</Empty>
      )}
    </Panel>
  );
}

export function ChannelPage(props: { connection: string; number: string }) {
  const name = `${props.connection} (${props.number})`;
  const { curves, choice, range } = useRange(3_600);
  const live = useLive<Channel>(`channels/${path(name)}?${curves}`);
  const channel = live.value;
  const total = (field: string) => number(count(channel?.message_stats, field));
  return (
    <>
      <Head
        kind="channel"
        list="connections"
        above={<a href={link("connections", props.connection)}>{props.connection}</a>}
        vhost={channel?.vhost}
        name={`Channel ${props.number}`}
        live={live}
        pill={channel && <State of={channel.state} />}
      >
        {choice}
      </Head>
      {channel && (
        <>
          <div class="columns">
            <Panel title="Details">
              <Facts
                of={[
                  ["User", channel.user],
                  ["Node", channel.node],
                  ["Mode", mode(channel)],
                  ["Prefetch", `${limit(channel.prefetch_count)} for each new consumer, ${limit(channel.global_prefetch_count)} for all together`],
                  ["Pending at the client", `${number(channel.messages_unacknowledged)} unacknowledged`],
                  ["Pending in the cluster", `${number(channel.messages_unconfirmed)} unconfirmed`],
                  ["In the transaction", `${number(channel.messages_uncommitted)} messages, ${number(channel.acks_uncommitted)} acknowledgements`],
                  ["Totals", `${total("publish")} published, ${total("deliver_get")} delivered, ${total("ack")} acknowledged`],
                ]}
              />
            </Panel>
            <Panel>
              <Chart title="Message rates" of={channel.message_stats} lines={RATES} rates range={range} />
            </Panel>
          </div>
          <Panel title="Consumers">
            {channel.consumer_details?.length ? (
              <Table
                label="Consumers"
                items={channel.consumer_details}
                id={(consumer) => consumer.consumer_tag}
                columns={[
                  { title: "Tag", cell: (consumer) => <code>{consumer.consumer_tag}</code> },
                  { title: "Queue", cell: (consumer) => <QueueLink of={consumer.queue} /> },
                  { title: "Acknowledges", cell: (consumer) => (consumer.ack_required ? "yes" : "no") },
                  { title: "Prefetch", number: true, cell: (consumer) => limit(consumer.prefetch_count) },
                ]}
              />
            ) : (
              <Empty title="No consumers">A client that only publishes or gets has none.</Empty>
            )}
          </Panel>
          {channel.publishes !== undefined && channel.publishes.length > 0 && (
            <Panel title="Publishes to">
              <Table
                label="Publishes to"
                items={channel.publishes}
                id={(flow) => flow.exchange.name}
                columns={[
                  { title: "Exchange", cell: (flow) => <ExchangeLink of={flow.exchange} /> },
                  { title: "Messages", number: true, cell: (flow) => number(count(flow.stats, "publish")) },
                  { title: "Rate", number: true, cell: (flow) => perSecond(rate(flow.stats, "publish")) },
                ]}
              />
              <p class="note">Counted while this page is open.</p>
            </Panel>
          )}
        </>
      )}
    </>
  );
}

function mode(channel: Channel): string {
  if (channel.transactional) return "transactions";
  return channel.confirm ? "publishes are confirmed" : "publishes are not confirmed";
}

export function ChannelLink({ of }: { of: Consumer["channel_details"] }) {
  if (of?.connection_name === undefined || of.number === undefined) return <>{of?.name ?? ""}</>;
  return (
    <a class="name" href={link("connections", of.connection_name, String(of.number))}>
      {of.name ?? `Channel ${of.number}`}
    </a>
  );
}

function ExchangeLink({ of }: { of: { name: string; vhost: string } }) {
  return (
    <a class="name" href={link("exchanges", of.vhost, exchangeInPath(of.name))}>
      {of.name || "(default exchange)"}
    </a>
  );
}

function QueueLink({ of }: { of: Consumer["queue"] }) {
  if (of?.name === undefined || of.vhost === undefined) return <></>;
  return (
    <a class="name" href={link("queues", of.vhost, of.name)}>
      {of.name}
    </a>
  );
}
