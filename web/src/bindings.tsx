// The bindings at one end, and a form for one more: of a queue those that lead here, of an exchange those from here.
import type { Binding } from "./api";
import { del, path, post } from "./api";
import type { Column, FieldOf } from "./ui";
import { Empty, Form, Json, Panel, Sure, Table, table } from "./ui";

type Values = Record<string, string>;

export interface OtherEnd {
  /** What is told of it in the table. */
  columns: Column<Binding>[];
  name: (binding: Binding) => string;
  /** Between the two ends, without the binding's key. */
  path: (binding: Binding) => string;
  /** What the form asks for. */
  fields: FieldOf[];
  chosen: (values: Values) => { name: string; path: string };
}

export function Bindings(props: {
  title: string;
  bindings: Binding[];
  other: OtherEnd;
  /** Of the dialog before an unbinding: "Unbind from", "Unbind"; and what comes of it. */
  unbind: string;
  detail: string;
  empty: { title: string; text: string };
  changes: boolean;
  /** Why this end could not be bound or unbound. */
  refused: string | undefined;
  again: () => void;
}) {
  const { other } = props;
  const unbind = (binding: Binding) => (
    <Sure
      small
      button="Unbind"
      label={`Unbind ${other.name(binding)} with ${binding.routing_key || "the empty key"}`}
      question={`${props.unbind} ${other.name(binding)}?`}
      detail={props.detail}
      deed={() => del(`${other.path(binding)}/${path(binding.properties_key)}`)}
      done="The binding is gone."
      refused={props.refused}
      then={props.again}
    />
  );
  return (
    <Panel title={props.title}>
      {props.bindings.length ? (
        <Table
          label={props.title}
          items={props.bindings}
          id={(binding) => `${binding.source} ${binding.destination_type} ${binding.destination} ${binding.properties_key}`}
          columns={[
            ...other.columns,
            { title: "Routing key", cell: (binding) => <code>{binding.routing_key || "(empty)"}</code> },
            { title: "Arguments", wide: true, cell: (binding) => (Object.keys(binding.arguments).length ? <Json of={binding.arguments} /> : "") },
            { title: "", cell: (binding) => props.changes && unbind(binding) },
          ]}
        />
      ) : (
        <Empty title={props.empty.title}>{props.empty.text}</Empty>
      )}
      {props.changes && (
        <Form
          label="Bind"
          button="Bind"
          refused={props.refused}
          fields={[...other.fields, { name: "routing_key", label: "Routing key" }, { name: "arguments", label: "Arguments", placeholder: "{}", hint: "JSON; empty for none" }]}
          submit={async (values, attempt) => {
            const { name, path } = other.chosen(values);
            const well = await attempt(() => post(path, { routing_key: values["routing_key"], arguments: table(values["arguments"]!) }), `Bound: ${name}.`);
            if (well) props.again();
            return well;
          }}
        />
      )}
    </Panel>
  );
}
