// Standing movers between brokers: which node runs each, what it does, why it does not.
import type { Bridge, Me } from "../api";
import { del, may, path } from "../api";
import { number } from "../format";
import { useLive } from "../live";
import { Panel, Sure, Table } from "../ui";

/** Nothing where there is no bridge, or for who may not set one. */
export function Bridges({ me }: { me: Me }) {
  const live = useLive<{ bridges: Bridge[] }>(may(me, "administrator") ? "bridges" : "");
  const found = live.value?.bridges;
  if (!found?.length) return null;
  return (
    <Panel title="Bridges">
      <Table
        label="Bridges"
        items={found}
        id={(one) => JSON.stringify([one.vhost, one.name])}
        columns={[
          { title: "Vhost", cell: (one) => one.vhost },
          { title: "Name", cell: (one) => <b class="name">{one.name}</b> },
          { title: "State", cell: (one) => <State of={one} /> },
          { title: "Node", cell: (one) => one.node || "–" },
          { title: "Source", wide: true, cell: (one) => one.source ?? "–" },
          { title: "Destination", wide: true, cell: (one) => one.destination ?? "–" },
          { title: "Moved", number: true, cell: (one) => (one.moved === undefined ? "–" : number(one.moved)) },
          { title: "Held", number: true, wide: true, cell: (one) => (one.held === undefined ? "–" : number(one.held)) },
          { title: "Lost ends", number: true, wide: true, cell: (one) => (one.lost === undefined ? "–" : number(one.lost)) },
          {
            title: "",
            cell: (one) => (
              <Sure
                small
                button="Delete"
                label={`Delete bridge ${one.name}`}
                question={`Delete bridge ${one.name}?`}
                detail="Nothing moves any more; what it knows of messages on their way is forgotten."
                deed={() => del(`parameters/shovel/${path(one.vhost, one.name)}`)}
                done={`${one.name} is deleted.`}
                then={live.again}
              />
            ),
          },
        ]}
      />
      <p class="sub">Counts are those of bridges that the asked node runs. To make one: clusterbroker bridges set</p>
    </Panel>
  );
}

function State({ of }: { of: Bridge }) {
  return (
    <>
      {of.state === "elsewhere" ? "at another node" : of.state}
      {of.why && <div class="sub">{of.why}</div>}
    </>
  );
}
