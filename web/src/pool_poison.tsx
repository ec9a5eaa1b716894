// Requests that workers died of: looked at where they are kept, given to their keys once more, or dropped.
import { useState } from "preact/hooks";
import type { Me, Pool, Queue } from "./api";
import { get, path, post } from "./api";
import type { Done, Found, Message } from "./browse";
import { Whole, tell } from "./browse";
import { number } from "./format";
import { useLive } from "./live";
import { when } from "./moves";
import { Empty, Json, Panel, Sure, attempt } from "./ui";
import { changer, lacking } from "./vhosts";

const COUNT = 50;

export function Poison(props: { me: Me; pool: Pool; then: () => void }) {
  const name = `${props.pool.exchange}-poison`;
  const at = `queues/${path(props.pool.vhost, name)}`;
  const queue = useLive<Queue>(`${at}?columns=may`, 30_000);
  const [found, setFound] = useState<Found | null>(null);
  const [open, setOpen] = useState<number | null>(null);
  const [busy, setBusy] = useState(false);
  const look = async (from = 1, before: Message[] = []) => {
    setBusy(true);
    await attempt(async () => {
      const more = await get<Found>(`${at}/messages?${new URLSearchParams({ from: String(from), count: String(COUNT) })}`);
      setFound({ ...more, items: [...before, ...more.items] });
    }, "");
    setBusy(false);
  };
  const after = () => {
    props.then();
    void look();
  };
  const may = queue.value?.may;
  if (!may || lacking(may, name, "read") !== undefined) return null;
  const changes = changer(props.me);
  const items = found?.items ?? [];
  return (
    <Panel title="Poison">
      <div class="actions">
        <button type="button" disabled={busy} onClick={() => void look()}>
          {found ? "Look again" : "Look at poison"}
        </button>
        <small>{number(props.pool.poison)} requests that workers died of.</small>
      </div>
      <div aria-live="polite">{found && items.length === 0 && <Empty title="No poison">Workers have died of no request that is kept.</Empty>}</div>
      {items.length > 0 && (
        <div class="scroll">
          <table aria-label="Poison">
            <thead>
              <tr>
                <th scope="col" class="num">
                  Seq
                </th>
                <th scope="col">Key</th>
                <th scope="col">Correlation id</th>
                <th scope="col">Workers that were lost</th>
                <th scope="col" class="wide">
                  Since
                </th>
                <th scope="col">
                  <span class="hidden">Deeds</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {items.map((message) => (
                <Row key={message.seq} message={message} open={open === message.seq} toggle={() => setOpen(open === message.seq ? null : message.seq)}>
                  {changes && (
                    <>
                      <Sure
                        small
                        button="Replay"
                        label={`Replay poison ${message.seq}`}
                        question={`Give request ${message.seq} to key ${message.routing_key} once more?`}
                        detail="Its count of failures begins anew. Workers may die of it again."
                        deed={async () => tell(await post<Done>(`${at}/messages/move`, { seqs: [message.seq], life: found!.life, exchange: props.pool.exchange }), "moved", "given to their keys")}
                        done=""
                        then={after}
                      />
                      <Sure
                        small
                        button="Drop"
                        label={`Drop poison ${message.seq}`}
                        question={`Drop request ${message.seq} of key ${message.routing_key}?`}
                        detail="Its caller was answered when it died. This cannot be undone."
                        deed={async () => tell(await post<Done>(`${at}/messages/delete`, { seqs: [message.seq], life: found!.life }), "deleted", "dropped")}
                        done=""
                        then={after}
                      />
                    </>
                  )}
                </Row>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {found && found.next !== null && (
        <div class="actions">
          <button type="button" disabled={busy} onClick={() => void look(found.next!, items)}>
            Look further
          </button>
        </div>
      )}
    </Panel>
  );
}

function Row(props: { message: Message; open: boolean; toggle: () => void; children: preact.ComponentChildren }) {
  const { message } = props;
  const poison = message.properties.headers?.["x-poison"] as { workers?: Record<string, unknown> } | undefined;
  const id = `poison-${message.seq}`;
  return (
    <>
      <tr>
        <td class="num">
          <button type="button" class="quiet seq" aria-expanded={props.open} aria-controls={id} aria-label={`Poison ${message.seq}`} onClick={props.toggle}>
            {message.seq}
          </button>
        </td>
        <td>
          <b class="name">{message.routing_key || "(empty)"}</b>
        </td>
        <td>{String(message.properties["correlation_id"] ?? "–")}</td>
        <td>
          <Json of={poison?.workers ?? {}} />
        </td>
        <td class="wide nowrap">{message.timestamp_ms ? when(message.timestamp_ms) : "–"}</td>
        <td>{props.children}</td>
      </tr>
      {props.open && (
        <tr id={id} class="opened">
          <td colSpan={6}>
            <Whole message={message} />
          </td>
        </tr>
      )}
    </>
  );
}
