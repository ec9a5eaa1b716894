// Limits of vhosts or of users: those that are set, and a form for one more.
import type { LimitsOf } from "./api";
import { del, path, put } from "./api";
import { number } from "./format";
import { Empty, Form, Panel, Sure, Table } from "./ui";

export function Limits(props: {
  of: "vhost" | "user";
  held: { who: string; limits: LimitsOf }[];
  /** Who may be given one. */
  names: string[];
  /** Names of limits, and what is said of each. */
  kinds: [string, string][];
  /** What is to be known before one reads the table. */
  note?: string;
  changes: boolean;
  again: () => void;
}) {
  const rows = props.held.flatMap(({ who, limits }) => Object.entries(limits).map(([limit, most]) => ({ who, limit, most })));
  const at = (who: string, limit: string) => `${props.of}-limits/${path(who, limit)}`;
  return (
    <Panel title={`Limits of ${props.of}s`}>
      {rows.length ? (
        <Table
          label="Limits"
          items={rows}
          id={(row) => `${row.who} ${row.limit}`}
          columns={[
            { title: props.of === "vhost" ? "Vhost" : "User", cell: (row) => <b class="name">{row.who}</b> },
            { title: "Limit", cell: (row) => row.limit },
            { title: "At most", number: true, cell: (row) => (row.most < 0 ? "any" : number(row.most)) },
            {
              title: "",
              cell: (row) =>
                props.changes && (
                  <Sure
                    small
                    button="Take off"
                    label={`Take ${row.limit} off ${row.who}`}
                    question={`Take ${row.limit} off ${row.who}?`}
                    detail="Only the limits of the nodes hold then."
                    deed={() => del(at(row.who, row.limit))}
                    done="The limit is taken off."
                    then={props.again}
                  />
                ),
            },
          ]}
        />
      ) : (
        <Empty title={`No ${props.of} has a limit`}>Only the limits of the nodes hold.</Empty>
      )}
      {props.note && <p class="note">{props.note}</p>}
      {props.changes && (
        <Form
          label={`Limit a ${props.of}`}
          button="Set limit"
          fields={[
            { name: "who", label: props.of === "vhost" ? "Vhost" : "User", options: props.names },
            { name: "limit", label: "Limit", options: props.kinds },
            { name: "most", label: "At most", kind: "number", required: true, hint: "0 allows none, -1 any" },
          ]}
          submit={async (values, attempt) => {
            const { who, limit, most } = values;
            const well = await attempt(() => put(at(who!, limit!), { value: Number(most) }), `${limit} of ${who} is set.`);
            if (well) props.again();
            return well;
          }}
        />
      )}
    </Panel>
  );
}
