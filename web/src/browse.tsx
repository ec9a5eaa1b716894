// What is in a queue, looked at where it lies: nothing is delivered, nothing is marked. What is chosen can be deleted, moved
// or sent again. It is asked for when somebody wants it, and not every few seconds: a filter may have far to look.
import { useId, useRef, useState } from "preact/hooks";
import { get, post } from "./api";
import { bytes, number, plural } from "./format";
import { when } from "./moves";
import { payloadAs, shownAs } from "./payload";
import type { Shape } from "./payload";
import { Empty, Json, Panel, Pill, Sure, attempt } from "./ui";

export const COUNTS = ["20", "50", "100", "500"];
export const BEGINNING = 90;

export interface Message {
  seq: number;
  state: "ready" | "unacknowledged" | "dead";
  node: string | null;
  redelivered: boolean;
  delivery_count: number;
  exchange: string;
  routing_key: string;
  properties: Record<string, unknown> & { headers?: Record<string, unknown> };
  payload: string;
  payload_bytes: number;
  payload_encoding: "string" | "base64";
  truncated: boolean;
  timestamp_ms: number | null;
  /** Of a delayed one. */
  due_ms?: number;
}
export interface Found {
  life: string;
  looked_at: number;
  next: number | null;
  last: number;
  items: Message[];
}
type Verb = "deleted" | "moved" | "replayed" | "sent" | "rescheduled";
export interface Done extends Partial<Record<Verb, number>> {
  looked_at: number;
  next: number | null;
  skipped?: Record<string, number[]>;
}
/** What was asked, with what was found until now. */
interface Looked extends Found {
  filter: string;
}

const SKIPPED: Record<string, string> = {
  not_ready: "gone or held by a consumer",
  unroutable: "with no queue bound for them",
  refused: "refused by the destination",
  no_origin: "without a queue of origin",
  unconfirmed: "not confirmed in time, so they may still arrive",
};

/** `take`: whether messages may be taken out of this queue; the node has the last word. */
export function Browse(props: { at: string; name: string; queues: string[]; take: boolean; then: () => void }) {
  const [looked, setLooked] = useState<Looked | null>(null);
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  const [open, setOpen] = useState<number | null>(null);
  const [busy, setBusy] = useState(false);
  const filter = useRef<HTMLInputElement>(null);
  const count = useRef<HTMLSelectElement>(null);
  const ids = { filter: useId(), count: useId(), hint: useId() };

  const ask = async (wanted: string, from: number, last: number | undefined): Promise<Found> => {
    const query = new URLSearchParams({ from: String(from), count: count.current!.value });
    if (wanted) query.set("filter", wanted);
    if (last !== undefined) query.set("to", String(last));
    return get<Found>(`${props.at}/messages?${query}`);
  };
  const look = async (wanted: string) => {
    setBusy(true);
    await attempt(async () => {
      setLooked({ ...(await ask(wanted, 1, undefined)), filter: wanted });
      setChosen(new Set());
      setOpen(null);
    }, "");
    setBusy(false);
  };
  const more = async () => {
    if (!looked || looked.next === null) return;
    setBusy(true);
    await attempt(async () => {
      const found = await ask(looked.filter, looked.next!, looked.last);
      setLooked({ ...looked, next: found.next, looked_at: looked.looked_at + found.looked_at, items: [...looked.items, ...found.items] });
    }, "");
    setBusy(false);
  };
  const send = (event: Event) => {
    event.preventDefault();
    void look(filter.current!.value.trim());
  };
  const choose = (seqs: number[], on: boolean) => {
    const after = new Set(chosen);
    for (const seq of seqs) on ? after.add(seq) : after.delete(seq);
    setChosen(after);
  };
  const items = looked?.items ?? [];
  const ready = items.filter((message) => message.state === "ready").map((message) => message.seq);
  const after = async () => {
    props.then();
    await look(looked!.filter);
  };
  return (
    <Panel title="Messages">
      <form class="form browse" aria-label="Browse messages" onSubmit={send}>
        <div class="field grow">
          <label for={ids.filter}>Filter</label>
          <input ref={filter} id={ids.filter} type="search" name="filter" autocomplete="off" spellcheck={false} placeholder={'routing_key=orders.* AND header.customer=17 AND age>5m'} aria-describedby={ids.hint} />
          <small id={ids.hint} class="hint">
            Empty: all. Conditions with AND between them: <code>=</code> <code>!=</code> <code>~</code> (contains) <code>&lt;</code> <code>&gt;</code>
          </small>
        </div>
        <div class="field">
          <label for={ids.count}>Page size</label>
          <select ref={count} id={ids.count} name="count">
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
      <div aria-live="polite">
        {looked && items.length === 0 && <Empty title={looked.filter ? "No message matches" : "There is no message"}>{looked.next !== null ? `${number(looked.looked_at)} were looked at; there are more.` : looked.filter ? `${number(looked.looked_at)} were looked at.` : "Published messages appear here."}</Empty>}
      </div>
      {looked && items.length > 0 && (
        <>
          <div class="scroll">
            <table aria-label="Messages" class="messages-in">
              <thead>
                <tr>
                  <th scope="col" class="tick-box">
                    {props.take && <input type="checkbox" aria-label="Choose all that are ready" checked={ready.length > 0 && ready.every((seq) => chosen.has(seq))} disabled={!ready.length} onChange={(event) => choose(ready, event.currentTarget.checked)} />}
                  </th>
                  <th scope="col" class="num">
                    Seq
                  </th>
                  <th scope="col">Routing key</th>
                  <th scope="col">Payload</th>
                  <th scope="col" class="num">
                    Size
                  </th>
                  <th scope="col" class="wide">
                    Since
                  </th>
                  <th scope="col">State</th>
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
            {plural(items.length, "message")} of {number(looked.looked_at)} looked at.{" "}
            {looked.next !== null && (
              <button type="button" class="quiet" disabled={busy} onClick={() => void more()}>
                Look further
              </button>
            )}
          </p>
        </>
      )}
      {looked && props.take && (items.length > 0 || looked.next !== null) && <Deeds at={props.at} name={props.name} queues={props.queues} looked={looked} chosen={[...chosen].sort((a, b) => a - b)} then={after} />}
    </Panel>
  );
}

function Row(props: { message: Message; open: boolean; toggle: () => void; take: boolean; chosen: boolean; choose: (on: boolean) => void }) {
  const { message } = props;
  const id = useId();
  const binary = message.payload_encoding === "base64";
  return (
    <>
      <tr class={props.chosen ? "picked" : ""}>
        <td class="tick-box">{props.take && <input type="checkbox" aria-label={`Choose message ${message.seq}`} checked={props.chosen} disabled={message.state !== "ready"} onChange={(event) => props.choose(event.currentTarget.checked)} />}</td>
        <td class="num">
          <button type="button" class="quiet seq" aria-expanded={props.open} aria-controls={id} aria-label={`Message ${message.seq}`} onClick={props.toggle}>
            {message.seq}
          </button>
        </td>
        <td>
          <code>{message.routing_key || "–"}</code>
        </td>
        <td class="beginning">{binary ? <small>binary</small> : message.payload.slice(0, BEGINNING) || <small>empty</small>}</td>
        <td class="num">{bytes(message.payload_bytes)}</td>
        <td class="wide nowrap">{message.timestamp_ms ? when(message.timestamp_ms) : "–"}</td>
        <td>
          <State of={message} />
        </td>
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

function State({ of }: { of: Message }) {
  if (of.state === "ready") return <Pill kind="good">{of.redelivered ? `ready, came back${of.delivery_count ? ` ${number(of.delivery_count)}×` : ""}` : "ready"}</Pill>;
  return of.state === "dead" ? <Pill kind="warn">being dead-lettered</Pill> : <Pill kind="warn">{of.node ? `with a consumer at ${of.node}` : "with a consumer"}</Pill>;
}

/** All of a message. */
export function Whole({ message }: { message: Message }) {
  const first = shownAs(message);
  const [shape, setShape] = useState<Shape>(first);
  const { headers, ...properties } = message.properties;
  return (
    <article class="whole" aria-label={`Message ${message.seq}`}>
      <dl class="facts">
        <div>
          <dt>Published to</dt>
          <dd>
            {message.exchange || "(default exchange)"} with <code>{message.routing_key || "an empty key"}</code>
          </dd>
        </div>
        <div>
          <dt>Properties</dt>
          <dd>
            <Json of={properties} />
          </dd>
        </div>
        <div>
          <dt>Headers</dt>
          <dd>
            <Json of={headers ?? {}} />
          </dd>
        </div>
      </dl>
      <div class="shapes" role="group" aria-label="Payload as">
        {(["text", "json", "hex"] as Shape[]).map((one) => (
          <button key={one} type="button" class="quiet" aria-pressed={one === shape} onClick={() => setShape(one)}>
            {one === "json" ? "JSON" : one === "hex" ? "Hex" : "Text"}
          </button>
        ))}
        {message.truncated && <small>the first {bytes(50_000)} of {bytes(message.payload_bytes)}</small>}
      </div>
      <pre tabIndex={0} aria-label="Payload">
        {payloadAs(shape, message)}
      </pre>
    </article>
  );
}

// -- deeds ----------------------------------------------------------------------------------------------------------

function Deeds(props: { at: string; name: string; queues: string[]; looked: Looked; chosen: number[]; then: () => Promise<void> }) {
  const { chosen, looked } = props;
  const [all, setAll] = useState(false);
  const which = all ? { filter: looked.filter, life: looked.life } : { seqs: chosen, life: looked.life };
  const what = all ? (looked.filter ? `all messages that match ${looked.filter}` : "all messages") : plural(chosen.length, "message");
  const nothing = !all && chosen.length === 0;
  const id = useId();
  return (
    <div class="deeds">
      <label class="check" for={id}>
        <input id={id} type="checkbox" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} /> {looked.filter ? "All that match, also those not shown" : "All messages, also those not shown"}
      </label>
      <div class="actions">
        <Transfer verb="move" at={props.at} from={props.name} queues={props.queues} what={what} which={which} disabled={nothing} then={props.then} />
        <Transfer verb="replay" at={props.at} from={props.name} queues={props.queues} what={what} which={which} disabled={nothing} then={props.then} />
        <Sure
          button="Delete messages"
          disabled={nothing}
          question={`Delete ${what}?`}
          detail="They are deleted on all replicas, except those that a consumer holds. This cannot be undone."
          deed={async () => tell(await post<Done>(`${props.at}/messages/delete`, which), "deleted")}
          done=""
          then={() => void props.then()}
        />
        {nothing && <small>Choose messages first.</small>}
      </div>
    </div>
  );
}

/** What came of it; when something was left out, as an error, which stays longer. */
export function tell(done: Done, verb: Verb, word: string = verb): void {
  const left = Object.entries(done.skipped ?? {}).filter(([, seqs]) => seqs.length > 0);
  const said = `${plural(done[verb] ?? 0, "message")} ${word}`;
  const rest = left.map(([why, seqs]) => `${number(seqs.length)} ${SKIPPED[why] ?? why}`);
  if (done.next !== null) rest.push("more are left: repeat");
  if (rest.length) throw new Error(`${said}; not all: ${rest.join(", ")}.`);
  void attempt(async () => {}, `${said}.`);
}

function Transfer(props: { verb: "move" | "replay"; at: string; from: string; queues: string[]; what: string; which: Record<string, unknown>; disabled: boolean; then: () => Promise<void> }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const form = useRef<HTMLFormElement>(null);
  const [to, setTo] = useState("queue");
  const id = useId();
  const move = props.verb === "move";
  const send = async (event: Event) => {
    event.preventDefault();
    const values = new FormData(form.current!);
    const key = String(values.get("routing_key") ?? "");
    const place = to === "queue" ? { to_queue: values.get("queue") } : to === "origin" ? { to_origin: true } : { exchange: values.get("exchange"), ...(key ? { routing_key: key } : {}) };
    dialog.current?.close();
    await attempt(async () => tell(await post<Done>(`${props.at}/messages/${props.verb}`, { ...props.which, ...place }), move ? "moved" : "replayed"), "");
    await props.then();
  };
  return (
    <>
      <button type="button" disabled={props.disabled} onClick={() => dialog.current?.showModal()}>
        {move ? "Move…" : "Republish…"}
      </button>
      <dialog ref={dialog} aria-labelledby={id}>
        <form ref={form} onSubmit={send}>
          <h2 id={id}>
            {move ? "Move" : "Republish"} {props.what}
          </h2>
          <p>{move ? "Each leaves this queue after its destination has confirmed." : "Each stays here, and a copy is sent."}</p>
          <div class="field">
            <label for={`${id}-to`}>Where to</label>
            <select id={`${id}-to`} value={to} onChange={(event) => setTo(event.currentTarget.value)}>
              <option value="queue">a queue</option>
              <option value="exchange">an exchange</option>
              <option value="origin">back to the queue of origin (first death)</option>
            </select>
          </div>
          {to === "queue" && (
            <div class="field">
              <label for={`${id}-queue`}>Queue</label>
              <input id={`${id}-queue`} name="queue" required list={`${id}-queues`} autocomplete="off" spellcheck={false} />
              <datalist id={`${id}-queues`}>
                {props.queues.filter((name) => name !== props.from).map((name) => (
                  <option key={name} value={name} />
                ))}
              </datalist>
            </div>
          )}
          {to === "exchange" && (
            <>
              <div class="field">
                <label for={`${id}-exchange`}>Exchange</label>
                <input id={`${id}-exchange`} name="exchange" required autocomplete="off" spellcheck={false} />
              </div>
              <div class="field">
                <label for={`${id}-key`}>Routing key</label>
                <input id={`${id}-key`} name="routing_key" autocomplete="off" spellcheck={false} placeholder="each message's own" />
              </div>
            </>
          )}
          <div class="actions">
            <button type="button" onClick={() => dialog.current?.close()}>
              Cancel
            </button>
            <button type="submit" class="main">
              {move ? "Move" : "Republish"}
            </button>
          </div>
        </form>
      </dialog>
    </>
  );
}
