// Requests of a worker pool, in whichever state they are: by their id, with the end of those that wait, or all.
import { useId, useRef, useState } from "preact/hooks";
import type { PoolRequest, PoolRequests } from "./api";
import { get, path, request } from "./api";
import { number, plural, span } from "./format";
import { link } from "./live";
import { when } from "./moves";
import { Empty, Panel, Pill, Sure, Table, attempt } from "./ui";

const KINDS: Partial<Record<PoolRequest["state"], "good" | "bad" | "warn">> = { held: "good", waiting: "warn", orphan: "warn", moving: "warn", delayed: "warn", dead: "bad", poison: "bad" };
/** In these nobody has begun with it. */
const CANCELLED: PoolRequest["state"][] = ["delayed", "orphan", "waiting"];

interface Looked extends PoolRequests {
  id: string;
  query: Record<string, string>;
}

export function FindRequest(props: { vhost: string; pool: string; then: () => void }) {
  const [looked, setLooked] = useState<Looked | null>(null);
  const [busy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const id = useId();
  const at = (wanted: string, query: Record<string, string>) => `pools/${path(props.vhost, props.pool)}/requests${wanted ? `/${path(wanted)}` : ""}?${new URLSearchParams(query)}`;
  const look = async (wanted: string, query: Record<string, string>, before: PoolRequest[] = []) => {
    setBusy(true);
    await attempt(async () => {
      const found = await get<PoolRequests>(at(wanted, query));
      setLooked({ ...found, items: [...before, ...found.items], id: wanted, query });
    }, "");
    setBusy(false);
  };
  const send = (event: Event) => {
    event.preventDefault();
    const values = new FormData(form.current!);
    const key = String(values.get("key") ?? "");
    void look(String(values.get("id") ?? ""), { by: String(values.get("by")), ...(key ? { key } : {}) });
  };
  const cancel = async () => {
    let count = 0;
    let start: string | null = null;
    do {
      const answer: PoolRequests = await request<PoolRequests>("DELETE", at(looked!.id, { ...looked!.query, ...(start !== null ? { start } : {}) }));
      count += answer.cancelled ?? 0;
      start = answer.next;
    } while (start !== null);
    if (!count) throw new Error("Nothing waits under this id any more.");
    await attempt(async () => {}, `${plural(count, "request")} cancelled.`);
  };
  const items = looked?.items ?? [];
  const waiting = items.filter((one) => CANCELLED.includes(one.state)).length;
  return (
    <Panel title="Find a request">
      <form ref={form} class="form" aria-label="Find a request" onSubmit={send}>
        <div class="field">
          <label for={`${id}-id`}>Id</label>
          <input id={`${id}-id`} type="search" name="id" placeholder="any" autocomplete="off" spellcheck={false} />
        </div>
        <div class="field">
          <label for={`${id}-by`}>It is a</label>
          <select id={`${id}-by`} name="by">
            <option value="correlation_id">correlation id</option>
            <option value="message_id">message id</option>
          </select>
        </div>
        <div class="field">
          <label for={`${id}-key`}>Only key</label>
          <input id={`${id}-key`} name="key" autocomplete="off" spellcheck={false} />
        </div>
        <div class="actions">
          <button type="submit" class="main" disabled={busy}>
            Find
          </button>
        </div>
      </form>
      <div aria-live="polite">
        {looked && items.length === 0 && <Empty title={looked.id ? "No such request is here" : "No requests"}>{!looked.id ? "None waits, is held or is kept as poison." : looked.next !== null ? "There are more keys to be looked into." : "It was answered, or was never there."}</Empty>}
        {looked && looked.not_looked_into.length > 0 && <p class="note bad">Not looked into: {looked.not_looked_into.join(", ")}.</p>}
      </div>
      {items.length > 0 && (
        <Table
          label="Requests"
          items={items}
          id={(one) => `${one.queue} ${one.seq}`}
          columns={[
            { title: "State", cell: (one) => <Pill kind={KINDS[one.state] ?? "plain"}>{one.state}</Pill> },
            {
              title: "Key",
              cell: (one) => (
                <a class="name" href={link("queues", props.vhost, one.queue)} title={one.queue}>
                  {one.key === "" ? "(empty)" : one.key}
                </a>
              ),
            },
            { title: "Id", wide: true, cell: (one) => one.correlation_id ?? one.message_id ?? "–" },
            { title: "What of it", cell: told },
            { title: "Attempt", number: true, wide: true, cell: (one) => (one.attempt === null ? "–" : number(one.attempt)) },
            { title: "Since", wide: true, cell: (one) => <span class="nowrap">{when(one.timestamp_ms)}</span> },
          ]}
        />
      )}
      {looked && (looked.next !== null || (looked.id && waiting > 0)) && (
        <div class="deeds">
          <div class="actions">
            {looked.next !== null && (
              <button type="button" disabled={busy} onClick={() => void look(looked.id, { ...looked.query, [looked.id ? "start" : "cursor"]: looked.next! }, items)}>
                {looked.id ? "Look into more keys" : "Show more"}
              </button>
            )}
            {looked.id && waiting > 0 && (
              <Sure
                button="Cancel request"
                label={`Cancel request ${looked.id}`}
                question={`Cancel ${plural(waiting, "request")} with id ${looked.id}?`}
                detail="Those that wait leave the pool, and their callers hear cancelled. What a worker holds goes on."
                deed={cancel}
                done=""
                then={() => {
                  props.then();
                  const { start: _, ...query } = looked.query;
                  void look(looked.id, query);
                }}
              />
            )}
          </div>
        </div>
      )}
    </Panel>
  );
}

/** Its worker, since when and how far; its place in line; when it is due, or why it died. */
function told(one: PoolRequest) {
  if (one.state === "held") return `${one.worker ? `worker ${one.worker}` : "a worker"}${one.node ? ` at ${one.node}` : ""}${one.held_since_ms ? `, for ${span(Date.now() - one.held_since_ms)}` : ""}${one.progress !== null ? `, ${Math.round(100 * one.progress)} % done` : ""}`;
  if (one.state === "delayed") return one.due_ms ? `due ${when(one.due_ms)}` : "put off";
  if (one.state === "orphan") return "its key has no queue yet";
  if (one.state === "moving") return "on its way to its key’s queue";
  if (one.state === "waiting") return `for a worker of its key${one.ahead === null ? "" : one.ahead === 0 ? ", as the next one" : `, ${number(one.ahead)} before it`}`;
  return one.reason ?? "its caller is being answered";
}
