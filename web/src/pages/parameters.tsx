import type { Me, Parameter, VhostParameter } from "../api";
import { del, may, path, put } from "../api";
import { link, useLive } from "../live";
import type { Column, FieldOf } from "../ui";
import { Empty, Form, Panel, Sure, Table, Waiting, json } from "../ui";
import { useVhosts } from "../vhosts";
import { Bridges } from "./bridges";

/** What is listed as a parameter, and is set on a page of its own. */
const ELSEWHERE: Partial<Record<string, string>> = { operator_policy: "policies", "vhost-limits": "vhosts" };

export function Parameters({ me }: { me: Me }) {
  const own = useLive<VhostParameter[]>("parameters");
  const global = useLive<Parameter[]>("global-parameters");
  const vhosts = useVhosts();
  return (
    <>
      <div class="title">
        <h1>Parameters</h1>
        <span class="sub">what plugins and programs keep in the cluster</span>
      </div>
      <Waiting live={own} />
      <Bridges me={me} />
      {own.value && (
        <Listed
          what="parameter"
          items={own.value}
          at={(parameter) => `parameters/${path(parameter.component, parameter.vhost, parameter.name)}`}
          columns={[
            { title: "Vhost", cell: (parameter) => parameter.vhost },
            { title: "Component", cell: (parameter) => parameter.component },
          ]}
          fields={[
            { name: "vhost", label: "Vhost", options: vhosts },
            { name: "component", label: "Component", required: true },
          ]}
          chosen={(values) => ({ vhost: values["vhost"]!, component: values["component"]!, name: values["name"]! })}
          page={(parameter) => ELSEWHERE[parameter.component]}
          changes={may(me, "policymaker")}
          again={own.again}
        />
      )}
      {global.value && (
        <Listed
          what="global parameter"
          items={global.value}
          at={(parameter) => `global-parameters/${path(parameter.name)}`}
          columns={[]}
          fields={[]}
          chosen={(values) => ({ name: values["name"]! })}
          page={() => undefined}
          changes={may(me, "administrator")}
          again={global.again}
        />
      )}
    </>
  );
}

function Listed<T extends Parameter>(props: {
  what: "parameter" | "global parameter";
  items: T[];
  /** Where it is in the API, whatever its value. */
  at: (parameter: Omit<T, "value">) => string;
  /** What it is told by, and asked for, besides name and value. */
  columns: Column<T>[];
  fields: FieldOf[];
  chosen: (values: Record<string, string>) => Omit<T, "value">;
  /** The page that it is changed on, if that is another one. */
  page: (parameter: T) => string | undefined;
  changes: boolean;
  again: () => void;
}) {
  const { what } = props;
  const title = `${what[0]!.toUpperCase()}${what.slice(1)}s`;
  const deed = (parameter: T) => {
    const page = props.page(parameter);
    if (page) return <a href={link(page)}>under {page}</a>;
    return (
      props.changes && (
        <Sure
          small
          button="Delete"
          label={`Delete ${what} ${parameter.name}`}
          question={`Delete ${what} ${parameter.name}?`}
          detail="Whoever reads it goes on without it."
          deed={() => del(props.at(parameter))}
          done={`${parameter.name} is deleted.`}
          then={props.again}
        />
      )
    );
  };
  return (
    <Panel title={title}>
      {props.items.length ? (
        <Table
          label={title}
          items={props.items}
          id={props.at}
          columns={[
            ...props.columns,
            { title: "Name", cell: (parameter) => <b class="name">{parameter.name}</b> },
            { title: "Value", cell: (parameter) => <code>{JSON.stringify(parameter.value)}</code> },
            { title: "", cell: deed },
          ]}
        />
      ) : (
        <Empty title={`No ${what}s`}>{props.changes ? "Set the first one below." : "Nobody has set one."}</Empty>
      )}
      {props.changes && (
        <Form
          label={`Set a ${what}`}
          button={`Set ${what}`}
          fields={[
            ...props.fields,
            { name: "name", label: "Name", required: true },
            { name: "value", label: "Value", kind: "area", required: true, hint: "JSON: an object, a list, a number, a text in quotes" },
          ]}
          submit={async (values, attempt) => {
            const well = await attempt(() => put(props.at(props.chosen(values)), { value: json(values["value"]!, '{"key": 5}') }), `${values["name"]} is set.`);
            if (well) props.again();
            return well;
          }}
        />
      )}
    </Panel>
  );
}
