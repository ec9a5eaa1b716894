import type { LimitsOf, Me, Vhost } from "../api";
import { del, may, path, put } from "../api";
import { number, plural } from "../format";
import { useLive } from "../live";
import { Limits } from "../limits";
import { Empty, Form, Panel, Pill, Sure, Table, Waiting } from "../ui";

const QUEUE_TYPES: [string, string][] = [
  ["", "what the client asks for"],
  ["classic", "classic"],
  ["quorum", "quorum"],
];
const LIMITS: [string, string][] = [
  ["max-queues", "max-queues: queues in it"],
  ["max-connections", "max-connections: connections to it"],
  ["max-bindings", "max-bindings: bindings in it"],
  ["max-bindings-per-exchange", "max-bindings-per-exchange: bindings of one exchange"],
  ["max-policies", "max-policies: policies and operator policies in it"],
  ["max-parameters", "max-parameters: parameters in it"],
];

export function Vhosts({ me }: { me: Me }) {
  const vhosts = useLive<Vhost[]>("vhosts");
  const limits = useLive<{ vhost: string; value: LimitsOf }[]>("vhost-limits");
  const changes = may(me, "administrator");
  const again = () => {
    vhosts.again();
    limits.again();
  };
  return (
    <>
      <div class="title">
        <h1>Vhosts</h1>
        <span class="sub">each has queues, exchanges, policies and permissions of its own</span>
      </div>
      <Waiting live={vhosts} />
      {vhosts.value && (
        <Panel title="Vhosts">
          {vhosts.value.length ? (
            <Table
              label="Vhosts"
              items={vhosts.value}
              id={(vhost) => vhost.name}
              columns={[
                { title: "Name", cell: (vhost) => <b class="name">{vhost.name}</b> },
                { title: "Description", wide: true, cell: (vhost) => vhost.description },
                { title: "Tags", wide: true, cell: (vhost) => vhost.tags.map((tag) => <Pill key={tag}>{tag}</Pill>) },
                { title: "Queue type", wide: true, cell: (vhost) => (vhost.default_queue_type === "undefined" ? "" : vhost.default_queue_type) },
                { title: "Ready", number: true, cell: (vhost) => number(vhost.messages_ready ?? 0) },
                { title: "Unacked", number: true, cell: (vhost) => number(vhost.messages_unacknowledged ?? 0) },
                {
                  title: "",
                  cell: (vhost) =>
                    changes && (
                      <Sure
                        small
                        button="Delete"
                        label={`Delete vhost ${vhost.name}`}
                        question={`Delete vhost ${vhost.name}?`}
                        detail={`All that is in it goes: queues with ${plural(vhost.messages ?? 0, "message")}, exchanges, bindings, policies, parameters, permissions. That cannot be undone.`}
                        deed={() => del(`vhosts/${path(vhost.name)}`)}
                        done={`Vhost ${vhost.name} is deleted.`}
                        then={again}
                      />
                    ),
                },
              ]}
            />
          ) : (
            <Empty title="No vhost is open to you">An administrator may give you a permission in one.</Empty>
          )}
          {changes && (
            <Form
              label="Set a vhost"
              button="Set vhost"
              fields={[
                { name: "name", label: "Name", required: true, hint: "of one that exists, what is beside this is set anew" },
                { name: "description", label: "Description" },
                { name: "tags", label: "Tags", hint: "with commas between them" },
                { name: "default_queue_type", label: "Type of its durable queues", options: QUEUE_TYPES },
              ]}
              submit={async (values, attempt) => {
                const { name, ...fields } = values;
                const well = await attempt(() => put(`vhosts/${path(name!)}`, fields), `Vhost ${name} is set. Who makes one may do everything in it; give others a permission.`);
                if (well) again();
                return well;
              }}
            />
          )}
        </Panel>
      )}
      {vhosts.value && limits.value && (
        <Limits
          of="vhost"
          held={limits.value.map((entry) => ({ who: entry.vhost, limits: entry.value }))}
          names={vhosts.value.map((vhost) => vhost.name)}
          kinds={LIMITS}
          note={changes ? "Those of vhosts that you may not enter are not shown." : undefined}
          changes={changes}
          again={again}
        />
      )}
    </>
  );
}
