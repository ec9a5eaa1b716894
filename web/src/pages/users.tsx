import type { Me, Permission, TopicPermission, User } from "../api";
import { del, path, put } from "../api";
import { useState } from "preact/hooks";
import { useLive } from "../live";
import { Limits } from "../limits";
import { Empty, Form, Panel, Pattern, Pill, Sure, Table, Waiting } from "../ui";
import { useVhosts } from "../vhosts";
import { TopicPermissions } from "./topic_permissions";

const TAGS: [string, string][] = [
  ["", "none: AMQP only"],
  ["management", "management: its own vhosts"],
  ["policymaker", "policymaker: policies too"],
  ["monitoring", "monitoring: sees everything"],
  ["administrator", "administrator: everything"],
];
const LIMITS: [string, string][] = [
  ["max-connections", "max-connections: its connections"],
  ["max-channels", "max-channels: its channels at a node"],
];

/** The tags to choose from: those of a user that has another combination come first. */
function tagged(user: User | undefined): [string, string][] {
  const now = user?.tags.join(",") ?? "";
  return TAGS.some(([tag]) => tag === now) ? TAGS : [[now, now], ...TAGS];
}

export function Users({ me }: { me: Me }) {
  const users = useLive<User[]>("users?columns=name,tags,limits");
  const permissions = useLive<Permission[]>("permissions");
  const topics = useLive<TopicPermission[]>("topic-permissions");
  const vhosts = useVhosts();
  const [edited, edit] = useState<User>();
  const [opened, enter] = useState<Permission>();
  const names = users.value?.map((user) => user.name) ?? [];
  const open = (user: User) => permissions.value?.filter((permission) => permission.user === user.name).map((permission) => permission.vhost) ?? [];
  return (
    <>
      <div class="title">
        <h1>Users and permissions</h1>
      </div>
      <Waiting live={users} />
      {users.value && (
        <Panel title="Users">
          <Table
            label="Users"
            items={users.value}
            id={(user) => user.name}
            columns={[
              { title: "Name", cell: (user) => <b class="name">{user.name}</b> },
              { title: "Tags", cell: (user) => (user.tags.length ? user.tags.map((tag) => <Pill key={tag}>{tag}</Pill>) : <small>none</small>) },
              { title: "May enter", cell: (user) => open(user).join(", ") || <Pill kind="warn">no vhost</Pill> },
              {
                title: "",
                cell: (user) => (
                  <>
                    <button type="button" class="quiet" aria-label={`Edit user ${user.name}`} onClick={() => edit(user)}>
                      Edit
                    </button>
                    {user.name !== me.name && (
                      <Sure
                        small
                        button="Delete"
                        label={`Delete user ${user.name}`}
                        question={`Delete user ${user.name}?`}
                        detail="Its permissions go with it, its connections are closed, and it is signed out here."
                        deed={() => del(`users/${path(user.name)}`)}
                        done={`User ${user.name} is deleted.`}
                        then={() => {
                          users.again();
                          permissions.again();
                          topics.again();
                        }}
                      />
                    )}
                  </>
                ),
              },
            ]}
          />
          <Form
            key={edited?.name ?? ""}
            label={edited ? `Edit user ${edited.name}` : "Set a user"}
            button={edited ? "Save" : "Set user"}
            fields={[
              edited ? { name: "name", label: "Name", options: [edited.name] } : { name: "name", label: "Name", required: true },
              { name: "password", label: "Password", kind: "password", required: !edited, hint: edited ? "empty: it stays; a new one signs the user out everywhere" : "for a user that exists, its new one: it is signed out everywhere" },
              { name: "tags", label: "Tag", options: tagged(edited), value: edited?.tags.join(",") ?? "" },
            ]}
            side={
              edited && (
                <button type="button" class="quiet" onClick={() => edit(undefined)}>
                  Cancel
                </button>
              )
            }
            submit={async (values, attempt) => {
              const { name, password, tags } = values;
              const well = await attempt(
                () => put(`users/${path(name!)}`, password ? { password, tags } : { tags }),
                edited ? `User ${name} is set.` : `User ${name} is set. Give it a permission in a vhost, if it has none.`,
              );
              if (well) {
                edit(undefined);
                users.again();
              }
              return well;
            }}
          />
        </Panel>
      )}
      {permissions.value && (
        <Panel title="Permissions">
          {permissions.value.length ? (
            <Table
              label="Permissions"
              items={permissions.value}
              id={(permission) => `${permission.vhost} ${permission.user}`}
              columns={[
                { title: "User", cell: (permission) => <b class="name">{permission.user}</b> },
                { title: "Vhost", cell: (permission) => permission.vhost },
                { title: "Configure", cell: (permission) => <Pattern of={permission.configure} /> },
                { title: "Write", cell: (permission) => <Pattern of={permission.write} /> },
                { title: "Read", cell: (permission) => <Pattern of={permission.read} /> },
                {
                  title: "",
                  cell: (permission) => (
                    <>
                      <button type="button" class="quiet" aria-label={`Edit ${permission.user} in ${permission.vhost}`} onClick={() => enter(permission)}>
                        Edit
                      </button>
                      <Sure
                        small
                        button="Clear"
                        label={`Clear ${permission.user} in ${permission.vhost}`}
                        question={`Close ${permission.vhost} to ${permission.user}?`}
                        detail="It may neither connect to this vhost any more nor see it here."
                        deed={() => del(`permissions/${path(permission.vhost, permission.user)}`)}
                        done="The permission is cleared."
                        then={permissions.again}
                      />
                    </>
                  ),
                },
              ]}
            />
          ) : (
            <Empty title="Nobody may enter any vhost">Set a permission below.</Empty>
          )}
          <Form
            key={opened ? `${opened.vhost} ${opened.user}` : ""}
            label={opened ? `Edit ${opened.user} in ${opened.vhost}` : "Set a permission"}
            button={opened ? "Save" : "Set permission"}
            fields={[
              { name: "user", label: "User", options: opened ? [opened.user] : names },
              { name: "vhost", label: "Vhost", options: opened ? [opened.vhost] : vhosts },
              { name: "configure", label: "Configure", value: opened?.configure ?? ".*" },
              { name: "write", label: "Write", value: opened?.write ?? ".*" },
              { name: "read", label: "Read", value: opened?.read ?? ".*", hint: "regular expressions for names; empty matches none" },
            ]}
            side={
              opened && (
                <button type="button" class="quiet" onClick={() => enter(undefined)}>
                  Cancel
                </button>
              )
            }
            submit={async (values, attempt) => {
              const { user, vhost, ...patterns } = values;
              const well = await attempt(() => put(`permissions/${path(vhost!, user!)}`, patterns), `${user} may enter ${vhost}.`);
              if (well) {
                enter(undefined);
                permissions.again();
              }
              return well;
            }}
          />
        </Panel>
      )}
      {topics.value && <TopicPermissions permissions={topics.value} users={names} vhosts={vhosts} again={topics.again} />}
      {users.value && <Limits of="user" held={users.value.map((user) => ({ who: user.name, limits: user.limits }))} names={names} kinds={LIMITS} changes again={users.again} />}
    </>
  );
}
