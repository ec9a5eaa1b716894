// Links of AMQP 1.0 whose clients are away, and what they hold.
import type { Me, Page, SuspendedLink } from "../api";
import { del, path } from "../api";
import { number, plural, span } from "../format";
import { useLive } from "../live";
import { Panel, Sure, Table } from "../ui";
import { changer } from "../vhosts";

const SHOWN = 100;
const DURABILITY: Record<string, string> = { session: "session", node: "memory of a node", log: "queue logs" };

/** Nothing where no link is suspended. */
export function SuspendedLinks({ me }: { me: Me }) {
  const live = useLive<Page<SuspendedLink>>(`links?state=suspended&page=1&page_size=${SHOWN}`);
  const found = live.value;
  if (!found || found.total_count === 0) return null;
  const more = found.total_count - found.items.length;
  return (
    <Panel title="Suspended links">
      <Table
        label="Suspended links"
        items={found.items}
        id={(one) => JSON.stringify([one.vhost, one.container_id, one.name, one.role, one.user])}
        columns={[
          { title: "Link", cell: (one) => <Name of={one} /> },
          { title: "Client", cell: (one) => `${one.role}, user ${one.user}` },
          { title: "Address", cell: (one) => one.address ?? "–" },
          { title: "Durability", cell: (one) => DURABILITY[one.level] ?? one.level },
          { title: "Node", wide: true, cell: (one) => one.node ?? "several" },
          { title: "Unsettled", number: true, cell: (one) => number(one.unsettled) },
          { title: "Since", number: true, wide: true, cell: (one) => span(one.since === null ? null : Date.now() - one.since) },
          { title: "Expires in", number: true, cell: (one) => span(one.expires_in_s === null ? null : one.expires_in_s * 1000) },
          {
            title: "",
            cell: (one) =>
              changer(me) &&
              one.container_id !== null && (
                <Sure
                  small
                  button="End"
                  label={`End ${one.name}`}
                  question="End this link?"
                  detail={`${one.name}. What it holds returns to its queue; its client cannot resume it.`}
                  deed={() => del(`links/${path(one.vhost, one.container_id ?? "", one.name)}?role=${one.role}`)}
                  done="The link has ended."
                  then={live.again}
                />
              ),
          },
        ]}
      />
      {more > 0 && <p class="sub">{`${plural(more, "link")} more: clusterbroker links list --state suspended`}</p>}
    </Panel>
  );
}

function Name({ of }: { of: SuspendedLink }) {
  return (
    <>
      <code>{of.name}</code>
      <small class="under">{of.container_id ?? "no container"}</small>
    </>
  );
}
