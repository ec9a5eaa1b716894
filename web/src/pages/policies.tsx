import type { Me, Policy } from "../api";
import { del, may, path, put } from "../api";
import { useState } from "preact/hooks";
import { useLive } from "../live";
import { settingFields, settingsOf } from "../settings";
import { Empty, Form, Panel, Sure, Table, Waiting } from "../ui";
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
  const [edited, edit] = useState<Policy>();
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
                  <>
                    <button type="button" class="quiet" aria-label={`Edit ${what} ${policy.name}`} onClick={() => edit(policy)}>
                      Edit
                    </button>
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
                  </>
                ),
            },
          ]}
        />
      ) : (
        <Empty title={`No ${props.title.toLowerCase()}`}>{props.offered ? "Set the first one below: for example a longest length for all queues of a team." : "Queues have what they were declared with."}</Empty>
      )}
      {props.offered && (
        <Form
          key={edited ? `${edited.vhost} ${edited.name}` : ""}
          label={edited ? `Edit ${what} ${edited.name}` : `Set ${what === "policy" ? "a policy" : "an operator policy"}`}
          button={edited ? "Save" : `Set ${what}`}
          fields={[
            { name: "vhost", label: "Vhost", options: edited ? [edited.vhost] : props.vhosts },
            edited ? { name: "name", label: "Name", options: [edited.name] } : { name: "name", label: "Name", required: true },
            { name: "pattern", label: "Pattern", required: true, value: edited?.pattern ?? "", placeholder: "^orders\\.", hint: "regular expression for names" },
            { name: "apply-to", label: "Applies to", value: edited?.["apply-to"] ?? "queues", options: what === "policy" ? ["queues", "exchanges", "all"] : ["queues"] },
            { name: "priority", label: "Priority", kind: "number", value: String(edited?.priority ?? 0) },
            ...settingFields("", edited?.definition),
          ]}
          side={
            edited && (
              <button type="button" class="quiet" onClick={() => edit(undefined)}>
                Cancel
              </button>
            )
          }
          submit={async (values, attempt) => {
            const well = await attempt(
              async () =>
                put(`${props.at}/${path(values["vhost"]!, values["name"]!)}`, {
                  pattern: values["pattern"],
                  "apply-to": values["apply-to"],
                  priority: Number(values["priority"]),
                  definition: settingsOf("", values),
                }),
              `${values["name"]} is set.`,
            );
            if (well) {
              edit(undefined);
              props.again();
            }
            return well;
          }}
        />
      )}
    </Panel>
  );
}
