import type { ComponentChildren } from "preact";
import type { Binding, Exchange, Me, Overview, Page } from "../api";
import { count, del, exchangeInPath, path, put, rate } from "../api";
import { Bindings } from "../bindings";
import { number, perSecond, plural } from "../format";
import { link, useLive, usePlace } from "../live";
import { Picture } from "../picture";
import { Empty, Facts, Filter, Form, Head, Pager, Panel, Pill, Sure, Table, Waiting, table } from "../ui";
import { VhostChoice, listed, useVhost } from "../vhost_choice";
import { changer, lacking, useVhosts, useVhostsToDeclareIn } from "../vhosts";
import { ChannelLink } from "./connection";
import { Publish } from "./queues";

const SIZE = 50;

const shown = (name: string) => name || "(default exchange)";

export function Exchanges({ me }: { me: Me }) {
  const { query } = usePlace();
  const name = query.get("name") ?? "";
  const sort = query.get("sort") ?? "";
  const reverse = query.get("reverse") === "1";
  const page = Number(query.get("page") ?? 1);
  const vhosts = useVhosts();
  const declarable = useVhostsToDeclareIn(me);
  const asked = new URLSearchParams({ page: String(page), page_size: String(SIZE), name, sort, sort_reverse: String(reverse) });
  const vhost = useVhost(vhosts);
  const live = useLive<Page<Exchange>>(`${listed("exchanges", vhost)}?${asked}`);
  const types = useLive<Overview>(changer(me) ? "overview?columns=exchange_types" : "", 600_000);
  const found = live.value;
  return (
    <>
      <div class="title">
        <h1>Exchanges</h1>
        <Filter label="Filter by name" value={name} />
        <VhostChoice vhosts={vhosts} vhost={vhost} />
      </div>
      <Waiting live={live} />
      {found && (
        <Panel>
          {found.items.length === 0 ? (
            <Empty title={`No exchange has “${name}” in its name`}>Change the filter, or clear it to see all {number(found.total_count)}.</Empty>
          ) : (
            <Table
              label="Exchanges"
              items={found.items}
              id={(exchange) => `${exchange.vhost} ${exchange.name}`}
              sort={sort}
              reverse={reverse}
              columns={[
                ...(vhosts.length > 1 ? [{ title: "Vhost", sort: "vhost", cell: (exchange: Exchange) => exchange.vhost }] : []),
                {
                  title: "Name",
                  sort: "name",
                  cell: (exchange) => (
                    <a class="name" href={link("exchanges", exchange.vhost, exchangeInPath(exchange.name))}>
                      {shown(exchange.name)}
                    </a>
                  ),
                },
                { title: "Type", sort: "type", cell: (exchange) => exchange.type },
                { title: "Features", wide: true, cell: features },
                { title: "In", number: true, wide: true, cell: (exchange) => perSecond(rate(exchange.message_stats, "publish_in")) },
                { title: "Out", number: true, wide: true, cell: (exchange) => perSecond(rate(exchange.message_stats, "publish_out")) },
              ]}
            />
          )}
          <Pager page={page} pages={found.page_count} found={found.filtered_count} total={found.total_count} what="exchanges" />
        </Panel>
      )}
      {declarable.length > 0 && (
        <Panel title="Declare an exchange">
          <Form
            label="Declare an exchange"
            button="Declare"
            fields={[
              { name: "vhost", label: "Vhost", options: declarable },
              { name: "name", label: "Name", required: true },
              { name: "type", label: "Type", options: types.value?.exchange_types.map((type) => type.name) ?? ["direct", "fanout", "topic", "headers"] },
              { name: "arguments", label: "Arguments", kind: "area", placeholder: '{"alternate-exchange": "unrouted"}', hint: "JSON; empty for none" },
            ]}
            submit={async (values, attempt) => {
              const to = `exchanges/${path(values["vhost"]!, values["name"]!)}`;
              const well = await attempt(() => put(to, { type: values["type"], arguments: table(values["arguments"]!) }), `Exchange ${values["name"]} is declared.`);
              if (well) live.again();
              return well;
            }}
          />
        </Panel>
      )}
    </>
  );
}

function features(exchange: Exchange): string {
  const found = [exchange.durable ? "durable" : "transient"];
  if (exchange.internal) found.push("internal");
  if (exchange.auto_delete) found.push("auto-delete");
  return found.join(", ");
}

export function ExchangePage({ me, vhost, name }: { me: Me; vhost: string; name: string }) {
  const at = `exchanges/${path(vhost, exchangeInPath(name))}`;
  const live = useLive<Exchange>(at);
  const out = useLive<Binding[]>(`${at}/bindings/source`);
  const into = useLive<Binding[]>(`${at}/bindings/destination`);
  const exchange = live.value;
  const own = name !== "" && !name.startsWith("amq.");
  const away = () => {
    location.hash = link("exchanges");
  };
  const again = () => {
    live.again();
    out.again();
  };
  return (
    <>
      <Head kind="exchange" list="exchanges" vhost={vhost} name={shown(name)} live={live} pill={exchange && <Pill>{exchange.type}</Pill>}>
        {exchange && own && changer(me) && (
          <Sure
            button="Delete"
            question={`Delete ${name}?`}
            detail="Its bindings go with it, and who publishes to it gets an error. Queues and messages stay."
            deed={() => del(at)}
            done={`${name} is deleted.`}
            refused={lacking(exchange.may, name, "configure")}
            then={away}
          />
        )}
      </Head>
      {exchange && (
        <>
          <Panel title="Where messages go">
            {out.value && into.value ? <Picture exchange={exchange} into={into.value} out={out.value} /> : <p class="note">Loading…</p>}
          </Panel>
          <div class="columns">
            <Panel title="Details">
              <Facts
                of={[
                  ["Features", features(exchange)],
                  ["Arguments", Object.keys(exchange.arguments).length ? <code>{JSON.stringify(exchange.arguments)}</code> : "none"],
                  ...(exchange.messages_delayed === undefined ? [] : [["Delayed", <a href={link("delayed", vhost, name)}>{plural(exchange.messages_delayed, "message")} waiting</a>] as [string, ComponentChildren]]),
                  ["Bindings", `${number(out.value?.length)} from here, ${number(into.value?.length)} to here`],
                ]}
              />
            </Panel>
            {changer(me) && !exchange.internal && <Publish vhost={vhost} exchange={name} routingKey="" may={exchange.may} then={again} />}
          </div>
          {exchange.incoming !== undefined && exchange.incoming.length > 0 && (
            <Panel title="Publishers">
              <Table
                label="Publishers"
                items={exchange.incoming}
                id={(flow) => flow.channel_details?.name ?? ""}
                columns={[
                  { title: "Channel", cell: (flow) => <ChannelLink of={flow.channel_details} /> },
                  { title: "User", cell: (flow) => flow.channel_details?.user ?? "" },
                  { title: "Messages", number: true, cell: (flow) => number(count(flow.stats, "publish")) },
                  { title: "Rate", number: true, cell: (flow) => perSecond(rate(flow.stats, "publish")) },
                ]}
              />
              <p class="note">Counted since somebody looks.</p>
            </Panel>
          )}
          {name !== "" && <BindingsFromHere me={me} exchange={exchange} bindings={out.value ?? []} again={out.again} />}
        </>
      )}
    </>
  );
}

function BindingsFromHere(props: { me: Me; exchange: Exchange; bindings: Binding[]; again: () => void }) {
  const changes = changer(props.me);
  const { name, vhost, may } = props.exchange;
  const to = (kind: string, destination: string) => `bindings/${path(vhost)}/e/${path(name)}/${kind[0]}/${path(destination)}`;
  return (
    <Bindings
      title="Bindings from here"
      bindings={props.bindings}
      other={{
        columns: [
          { title: "To", cell: (binding) => <a href={link(`${binding.destination_type}s`, binding.vhost, binding.destination)}>{binding.destination}</a> },
          { title: "Kind", cell: (binding) => binding.destination_type },
        ],
        name: (binding) => binding.destination,
        path: (binding) => to(binding.destination_type, binding.destination),
        fields: [
          { name: "kind", label: "To", options: ["queue", "exchange"] },
          { name: "destination", label: "Name", required: true },
        ],
        chosen: (values) => ({ name: values["destination"]!, path: to(values["kind"]!, values["destination"]!) }),
      }}
      unbind="Unbind"
      detail="What is published here goes there no more."
      empty={{
        title: "Nothing is bound here",
        text: `What is published is dropped, or returned to who published it as mandatory. ${changes ? "Bind a queue below." : ""}`,
      }}
      changes={changes}
      refused={lacking(may, name, "read")}
      again={props.again}
    />
  );
}
