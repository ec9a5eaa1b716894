import type { TopicPermission } from "../api";
import { del, path, put } from "../api";
import { Empty, Form, Panel, Pattern, Sure, Table } from "../ui";

export function TopicPermissions(props: { permissions: TopicPermission[]; users: string[]; vhosts: string[]; again: () => void }) {
  return (
    <Panel title="Topic permissions">
      {props.permissions.length ? (
        <Table
          label="Topic permissions"
          items={props.permissions}
          id={(permission) => JSON.stringify([permission.vhost, permission.user, permission.exchange])}
          columns={[
            { title: "User", cell: (permission) => <b class="name">{permission.user}</b> },
            { title: "Vhost", cell: (permission) => permission.vhost },
            { title: "Exchange", cell: (permission) => permission.exchange },
            { title: "Write", cell: (permission) => <Pattern of={permission.write} /> },
            { title: "Read", cell: (permission) => <Pattern of={permission.read} /> },
            {
              title: "",
              cell: (permission) => (
                <Sure
                  small
                  button="Clear"
                  label={`Clear ${permission.user} at ${permission.exchange} in ${permission.vhost}`}
                  question={`Clear what ${permission.user} may use at ${permission.exchange}?`}
                  detail={`It may use every routing key there then, as far as its permission in ${permission.vhost} goes.`}
                  deed={() => del(`topic-permissions/${path(permission.vhost, permission.user, permission.exchange)}`)}
                  done="The topic permission is cleared."
                  then={props.again}
                />
              ),
            },
          ]}
        />
      ) : (
        <Empty title="No routing key is closed to anybody">Who may write to or read from a topic exchange may use all of its keys.</Empty>
      )}
      <Form
        label="Set a topic permission"
        button="Set topic permission"
        fields={[
          { name: "user", label: "User", options: props.users },
          { name: "vhost", label: "Vhost", options: props.vhosts },
          { name: "exchange", label: "Topic exchange", required: true, placeholder: "amq.topic" },
          { name: "write", label: "Write", value: ".*" },
          { name: "read", label: "Read", value: ".*", hint: "regular expressions for routing keys; empty matches none" },
        ]}
        submit={async (values, attempt) => {
          const { user, vhost, ...fields } = values;
          const well = await attempt(() => put(`topic-permissions/${path(vhost!, user!)}`, fields), `What ${user} may use at ${fields["exchange"]} is set.`);
          if (well) props.again();
          return well;
        }}
      />
    </Panel>
  );
}
