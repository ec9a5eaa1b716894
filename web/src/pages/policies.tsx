import type { Me, Policy } from "../api";
import { del, may, path, put } from "../api";
import { useLive } from "../live";
import { Empty, Form, Panel, Sure, Table, Waiting, attempt, table } from "../ui";
import { useVhosts } from "../vhosts";

export function Policies({ me }: { me: Me }) {
  const own = useLive<Policy[]>("policies");
  const operator = useLive<Policy[]>("operator-policies");
  const vhosts = useVhosts();
  return (
    <>
      <div class="title">
        <h1>Policies</h1>
        <span class="sub">limits and settings for all queues or exchanges whose name matches; the highest priority holds</span>
      </div>
      <Waiting live={own} />
      {own.value && <Listed title="Policies" at="policies" policies={own.value} offered={may(me, "policymaker")} vhosts={vhosts} again={own.again} />}
      {operator.value && (operator.value.length > 0 || may(me, "administrator")) && (
        <Listed title="Operator policies" at="operator-policies" policies={operator.value} offered={may(me, "administrator")} vhosts={vhosts} again={operator.again} />
      )}
    </>
  );
}

function Listed(props: { title: string; at: string; policies: Policy[]; offered: boolean; vhosts: string[]; again: () => void }) {
  const what = props.at === "policies" ? "policy" : "operator policy";
  return (
    <Panel title={props.title}>
      {props.policies.length ? (
        <Table
          label={props.title}
          items={props.policies}
          id={(policy) => `${policy.vhost} ${policy.name}`}
          columns={[
            { title: "Vhost", cell: (policy) => policy.vhost },
            { title: "Name", cell: (policy) => <b class="name">{policy.name}</b> },
            { title: "Pattern", cell: (policy) => <code>{policy.pattern}</code> },
            { title: "Applies to", cell: (policy) => policy["apply-to"] },
            { title: "Definition", cell: (policy) => <code>{JSON.stringify(policy.definition)}</code> },
            { title: "Priority", number: true, cell: (policy) => policy.priority },
            {
              title: "",
              cell: (policy) =>
                props.offered && (
                  <Sure
                    small
                    button="Delete"
                    label={`Delete ${what} ${policy.name}`}
                    question={`Delete ${what} ${policy.name}?`}
                    detail="What it set goes back to the next policy that matches, or to the default, at once."
                    deed={() => del(`${props.at}/${path(policy.vhost, policy.name)}`)}
                    done={`${policy.name} is deleted.`}
                    then={props.again}
                  />
                ),
            },
          ]}
        />
      ) : (
        <Empty title={`No ${props.title.toLowerCase()}`}>{props.offered ? "Set the first one below: for example a longest length for all queues of a team." : "Queues have what they were declared with."}</Empty>
      )}
      {props.offered && (
        <Form
          label={`Set ${what === "policy" ? "a policy" : "an operator policy"}`}
          button={`Set ${what}`}
          fields={[
            { name: "vhost", label: "Vhost", options: props.vhosts },
            { name: "name", label: "Name", required: true },
            { name: "pattern", label: "Pattern", required: true, placeholder: "^orders\\.", hint: "regular expression for names" },
            { name: "apply-to", label: "Applies to", options: what === "policy" ? ["queues", "exchanges", "all"] : ["queues"] },
            { name: "priority", label: "Priority", kind: "number", value: "0" },
            { name: "definition", label: "Definition", kind: "area", required: true, placeholder: '{"max-length": 100000, "overflow": "reject-publish"}' },
          ]}
          submit={async (values) => {
            const well = await attempt(
              () =>
                put(`${props.at}/${path(values["vhost"]!, values["name"]!)}`, {
                  pattern: values["pattern"],
                  "apply-to": values["apply-to"],
                  priority: Number(values["priority"]),
                  definition: table(values["definition"]!),
                }),
              `${values["name"]} is set.`,
            );
            if (well) props.again();
            return well;
          }}
        />
      )}
    </Panel>
  );
}
