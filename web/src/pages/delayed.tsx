// Delayed messages: what waits in which exchange until when, and what can be done to it before it is due. A list is asked for
// when somebody wants it; how many wait and which is next, every few seconds.
import { useId, useRef, useState } from "preact/hooks";
import type { Exchange, Me, Page, Queue } from "../api";
import { get, path, post } from "../api";
import type { Done, Found, Message } from "../browse";
import { BEGINNING, COUNTS, Whole, tell } from "../browse";
import { bytes, number, plural, span } from "../format";
import { link, useLive, usePlace } from "../live";
import { when } from "../moves";
import { Empty, Facts, Filter, Head, Pager, Panel, Pill, Sure, Table, Waiting, attempt } from "../ui";
import { VhostChoice, listed, useVhost } from "../vhost_choice";
import { lacking, useVhosts } from "../vhosts";

const SIZE = 20;
const PREFIX = "amq.delay.";
/** So often a list asks for the next message of each exchange. */
const NEXT_MS = 30_000;

const waitingAt = (vhost: string, exchange: string) => `exchanges/${path(vhost, exchange)}/delayed`;

/** The exchange whose messages wait in a queue. */
const exchangeOf = (queue: Queue): string => String(queue.arguments["x-delays"] ?? queue.name.slice(PREFIX.length));

/** When, and in how long. */
function Due({ at }: { at: number }) {
  const left = at - Date.now();
  return (
    <span class="nowrap">
      {when(at)} <small>{left > 0 ? `in ${span(left)}` : "due"}</small>
    </span>
  );
}

function Next(props: { vhost: string; exchange: string; everyMs: number }) {
  const live = useLive<Found>(`${waitingAt(props.vhost, props.exchange)}?count=1&truncate=0`, props.everyMs);
  if (live.error !== undefined && live.value === undefined) return <small>{live.status === 403 || live.status === 401 ? "not for you to see" : "not known now"}</small>;
  const first = live.value?.items[0];
  return first?.due_ms ? <Due at={first.due_ms} /> : <>{live.value ? "nothing" : "–"}</>;
}

/** Delayed exchanges: how many messages wait in each, and when the next one is due. */
export function DelayedExchanges() {
  const { query } = usePlace();
  const name = query.get("name") ?? "";
  const page = Number(query.get("page") ?? 1);
  const vhosts = useVhosts();
  const vhost = useVhost(vhosts);
  const escaped = name.replace(/[^A-Za-z0-9]/gu, (one) => (one.charCodeAt(0) < 128 ? `\\${one}` : one));
  const asked = new URLSearchParams({ page: String(page), page_size: String(SIZE), use_regex: "true", name: `^amq\\.delay\\..*${escaped}` });
  const live = useLive<Page<Queue>>(`${listed("queues", vhost)}?${asked}`);
  const found = live.value;
  return (
    <>
      <div class="title">
        <h1>Delayed messages</h1>
        <Filter label="Filter by exchange" value={name} />
        <VhostChoice vhosts={vhosts} vhost={vhost} />
      </div>
      <Waiting live={live} />
      {found && (
        <Panel>
          {found.items.length === 0 ? (
            <Empty title={name ? `No delayed exchange has “${name}” in its name` : "No delayed exchanges"}>
              {name ? "Change the filter, or clear it to see all." : <>An exchange of type <code>x-delayed-message</code> keeps messages with the header <code>x-delay</code> until they are due.</>}
            </Empty>
          ) : (
            <Table
              label="Delayed exchanges"
              items={found.items}
              id={(queue) => `${queue.vhost} ${queue.name}`}
              columns={[
                ...(vhosts.length > 1 ? [{ title: "Vhost", cell: (queue: Queue) => queue.vhost }] : []),
                {
                  title: "Exchange",
                  cell: (queue) => (
                    <a class="name" href={link("delayed", queue.vhost, exchangeOf(queue))}>
                      {exchangeOf(queue)}
                    </a>
                  ),
                },
                { title: "Waiting", number: true, cell: (queue) => number(queue.messages_ready) },
                { title: "Next due", cell: (queue) => <Next vhost={queue.vhost} exchange={exchangeOf(queue)} everyMs={NEXT_MS} /> },
                { title: "Bytes", number: true, wide: true, cell: (queue) => bytes(queue.message_bytes) },
                { title: "Leader", wide: true, cell: (queue) => queue.owner ?? "none" },
              ]}
            />
          )}
          <Pager page={page} pages={found.page_count} found={found.filtered_count} total={found.filtered_count} what="exchanges" />
        </Panel>
      )}
    </>
  );
}

/** What waits in one exchange. */
export function DelayedPage({ me, vhost, name }: { me: Me; vhost: string; name: string }) {
  const live = useLive<Exchange>(`exchanges/${path(vhost, name)}`);
  const exchange = live.value;
  const delayed = exchange?.messages_delayed !== undefined;
  return (
    <>
      <Head kind="exchange" list="delayed" vhost={vhost} name={name} live={live} pill={exchange && <Pill>{String(exchange.arguments["x-delayed-type"] ?? exchange.type)}</Pill>} />
      {exchange && !delayed && <Empty title="This exchange delays nothing">Only one of type x-delayed-message does.</Empty>}
      {exchange && delayed && (
        <>
          <Panel title="Waiting">
            <Facts
              of={[
                ["Messages", number(exchange.messages_delayed)],
                ["Next due", <Next vhost={vhost} exchange={name} everyMs={5_000} />],
                ["Exchange", <a href={link("exchanges", vhost, name)}>{name}</a>],
                ["They stand in", <a href={link("queues", vhost, `${PREFIX}${name}`)}>{`${PREFIX}${name}`}</a>],
              ]}
            />
          </Panel>
          <Browse at={waitingAt(vhost, name)} refused={lacking(exchange.may, name, "read", "write")} take={me.tags.some((tag) => tag !== "monitoring")} then={live.again} />
        </>
      )}
    </>
  );
}

/** What was asked, with what was found until now. */
interface Looked extends Found {
  query: Record<string, string>;
  filter: string;
}

/** A time of a field, ms since 1970; undefined: none was said. */
const moment = (text: string): number | undefined => (text ? new Date(text).getTime() : undefined);

function Browse(props: { at: string; refused: string | undefined; take: boolean; then: () => void }) {
  const [looked, setLooked] = useState<Looked | null>(null);
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  const [open, setOpen] = useState<number | null>(null);
  const [busy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const id = useId();

  const ask = async (query: Record<string, string>): Promise<Found> => get<Found>(`${props.at}?${new URLSearchParams(query)}`);
  const look = async (query: Record<string, string>) => {
    setBusy(true);
    await attempt(async () => {
      setLooked({ ...(await ask(query)), query, filter: query["filter"] ?? "" });
      setChosen(new Set());
      setOpen(null);
    }, "");
    setBusy(false);
  };
  const send = (event: Event) => {
    event.preventDefault();
    const values = new FormData(form.current!);
    const said = (field: string) => String(values.get(field) ?? "").trim();
    const query: Record<string, string> = { count: said("count") };
    const [from, to] = [moment(said("due_from")), moment(said("due_to"))];
    if (said("filter")) query["filter"] = said("filter");
    if (said("key")) query["key"] = said("key");
    if (from !== undefined) query["due_from"] = String(from);
    if (to !== undefined) query["due_to"] = String(to);
    void look(query);
  };
  const items = looked?.items ?? [];
  const more = async () => {
    const last = items[items.length - 1];
    if (!looked || !last) return;
    setBusy(true);
    await attempt(async () => {
      // by due time: those of the same time as the last one come once more
      const known = new Set(items.map((message) => message.seq));
      const found = await ask({ ...looked.query, count: "500", due_from: String(last.due_ms) });
      const fresh = found.items.filter((message) => !known.has(message.seq));
      if (!fresh.length && found.next !== null) throw new Error("More messages than a page has are due at this time. Choose some by a filter.");
      setLooked({ ...looked, next: found.next, items: [...items, ...fresh] });
    }, "");
    setBusy(false);
  };
  const choose = (seqs: number[], on: boolean) => {
    const after = new Set(chosen);
    for (const seq of seqs) on ? after.add(seq) : after.delete(seq);
    setChosen(after);
  };
  const ready = items.filter((message) => message.state === "ready").map((message) => message.seq);
  const after = async () => {
    props.then();
    await look(looked!.query);
  };
  return (
    <Panel title="Messages">
      <form ref={form} class="form dues" aria-label="Browse delayed messages" onSubmit={send}>
        <div class="field row">
          <label for={`${id}-filter`}>Filter</label>
          <input id={`${id}-filter`} type="search" name="filter" autocomplete="off" spellcheck={false} placeholder="routing_key=orders.* AND header.customer=17" aria-describedby={`${id}-hint`} />
          <small id={`${id}-hint`} class="hint">
            Empty: all. Conditions with AND between them: <code>=</code> <code>!=</code> <code>~</code> (contains) <code>&lt;</code> <code>&gt;</code>
          </small>
        </div>
        <div class="field">
          <label for={`${id}-key`}>Key (x-delay-key)</label>
          <input id={`${id}-key`} name="key" autocomplete="off" spellcheck={false} />
        </div>
        <div class="field">
          <label for={`${id}-from`}>Due from</label>
          <input id={`${id}-from`} type="datetime-local" name="due_from" step="1" />
        </div>
        <div class="field">
          <label for={`${id}-to`}>Due until</label>
          <input id={`${id}-to`} type="datetime-local" name="due_to" step="1" />
        </div>
        <div class="field">
          <label for={`${id}-count`}>Page size</label>
          <select id={`${id}-count`} name="count">
            {COUNTS.map((one) => (
              <option key={one} selected={one === "50"}>
                {one}
              </option>
            ))}
          </select>
        </div>
        <div class="actions">
          <button type="submit" class="main" disabled={busy}>
            Browse
          </button>
        </div>
      </form>
      <div aria-live="polite">{looked && items.length === 0 && <Empty title="No such message waits">{number(looked.looked_at)} were looked at.</Empty>}</div>
      {looked && items.length > 0 && (
        <>
          <div class="scroll">
            <table aria-label="Delayed messages" class="messages-in">
              <thead>
                <tr>
                  <th scope="col" class="tick-box">
                    {props.take && <input type="checkbox" aria-label="Choose all that wait" checked={ready.length > 0 && ready.every((seq) => chosen.has(seq))} disabled={!ready.length} onChange={(event) => choose(ready, event.currentTarget.checked)} />}
                  </th>
                  <th scope="col" class="num">
                    Seq
                  </th>
                  <th scope="col">Due</th>
                  <th scope="col">Key</th>
                  <th scope="col">Routing key</th>
                  <th scope="col" class="wide">
                    Payload
                  </th>
                  <th scope="col" class="num wide">
                    Size
                  </th>
                </tr>
              </thead>
              <tbody>
                {items.map((message) => (
                  <Row key={message.seq} message={message} open={open === message.seq} toggle={() => setOpen(open === message.seq ? null : message.seq)} take={props.take} chosen={chosen.has(message.seq)} choose={(on) => choose([message.seq], on)} />
                ))}
              </tbody>
            </table>
          </div>
          <p class="note">
            {plural(items.length, "message")}.{" "}
            {looked.next !== null && (
              <button type="button" class="quiet" disabled={busy} onClick={() => void more()}>
                Look further
              </button>
            )}
          </p>
          {props.take && <Deeds at={props.at} looked={looked} chosen={[...chosen].sort((a, b) => a - b)} refused={props.refused} then={after} />}
        </>
      )}
    </Panel>
  );
}

function Row(props: { message: Message; open: boolean; toggle: () => void; take: boolean; chosen: boolean; choose: (on: boolean) => void }) {
  const { message } = props;
  const id = useId();
  const key = message.properties.headers?.["x-delay-key"];
  return (
    <>
      <tr class={props.chosen ? "picked" : ""}>
        <td class="tick-box">{props.take && <input type="checkbox" aria-label={`Choose message ${message.seq}`} checked={props.chosen} disabled={message.state !== "ready"} onChange={(event) => props.choose(event.currentTarget.checked)} />}</td>
        <td class="num">
          <button type="button" class="quiet seq" aria-expanded={props.open} aria-controls={id} aria-label={`Message ${message.seq}`} onClick={props.toggle}>
            {message.seq}
          </button>
        </td>
        <td>{message.due_ms ? <Due at={message.due_ms} /> : "–"}</td>
        <td>{typeof key === "string" ? <code>{key}</code> : "–"}</td>
        <td>
          <code>{message.routing_key || "–"}</code>
        </td>
        <td class="beginning wide">{message.payload_encoding === "base64" ? <small>binary</small> : message.payload.slice(0, BEGINNING) || <small>empty</small>}</td>
        <td class="num wide">{bytes(message.payload_bytes)}</td>
      </tr>
      {props.open && (
        <tr id={id} class="opened">
          <td colSpan={7}>
            <Whole message={message} />
          </td>
        </tr>
      )}
    </>
  );
}

function Deeds(props: { at: string; looked: Looked; chosen: number[]; refused: string | undefined; then: () => Promise<void> }) {
  const { chosen, looked } = props;
  const [wants, setAll] = useState(false);
  // a filter knows no due times and no keys: it would mean more than what is shown
  const narrow = ["key", "due_from", "due_to"].some((field) => field in looked.query);
  const all = wants && !narrow;
  const which = all ? { filter: looked.filter, life: looked.life } : { seqs: chosen, life: looked.life };
  const what = all ? (looked.filter ? `all messages that match ${looked.filter}` : "all messages") : plural(chosen.length, "message");
  const nothing = !all && chosen.length === 0;
  const id = useId();
  const now = async () => {
    await attempt(async () => tell(await post<Done>(`${props.at}/send-now`, which), "sent"), "");
    await props.then();
  };
  return (
    <div class="deeds">
      {!narrow && (
        <label class="check" for={id}>
          <input id={id} type="checkbox" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} /> {looked.filter ? "All that match, also those not shown" : "All messages, also those not shown"}
        </label>
      )}
      <div class="actions">
        <button type="button" disabled={nothing || props.refused !== undefined} title={props.refused} onClick={() => void now()}>
          Send now
        </button>
        <Reschedule at={props.at} what={what} which={which} disabled={nothing} refused={props.refused} then={props.then} />
        <Sure
          button="Cancel messages"
          disabled={nothing}
          refused={props.refused}
          question={`Cancel ${what}?`}
          detail="They are deleted on all replicas, and never come. This cannot be undone."
          deed={async () => tell(await post<Done>(`${props.at}/delete`, which), "deleted", "cancelled")}
          done=""
          then={() => void props.then()}
        />
        {nothing && <small>Choose messages first.</small>}
      </div>
    </div>
  );
}

function Reschedule(props: { at: string; what: string; which: Record<string, unknown>; disabled: boolean; refused: string | undefined; then: () => Promise<void> }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const form = useRef<HTMLFormElement>(null);
  const id = useId();
  const send = async (event: Event) => {
    event.preventDefault();
    const at = moment(String(new FormData(form.current!).get("at") ?? ""));
    if (at === undefined) return;
    dialog.current?.close();
    await attempt(async () => tell(await post<Done>(`${props.at}/reschedule`, { ...props.which, deliver_at: at }), "rescheduled"), "");
    await props.then();
  };
  return (
    <>
      <button type="button" disabled={props.disabled || props.refused !== undefined} title={props.refused} onClick={() => dialog.current?.showModal()}>
        Reschedule…
      </button>
      <dialog ref={dialog} aria-labelledby={id}>
        <form ref={form} onSubmit={send}>
          <h2 id={id}>Reschedule {props.what}</h2>
          <p>Each comes at the new time only, ten years from now at most.</p>
          <div class="field">
            <label for={`${id}-at`}>Due</label>
            <input id={`${id}-at`} type="datetime-local" name="at" step="1" required />
          </div>
          <div class="actions">
            <button type="button" onClick={() => dialog.current?.close()}>
              Cancel
            </button>
            <button type="submit" class="main">
              Reschedule
            </button>
          </div>
        </form>
      </dialog>
    </>
  );
}
