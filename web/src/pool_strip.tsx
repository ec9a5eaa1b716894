// Keys of a worker pool as a strip: a bar for each, its colour the state, its width the memory that a worker of the key takes. The
// largest keys are drawn, as many as have room; the others are one bar.
//
// One stop of the keyboard: arrow keys walk through the bars, the line below says what is chosen, and Enter leads to the key.
import { useState } from "preact/hooks";
import { bytes, number, plural } from "./format";
import type { Live } from "./live";
import { link } from "./live";
import { useWidth } from "./timeline";
import { Panel, Waiting } from "./ui";

export interface KeyBar {
  key: string;
  state: string;
  queue: string;
  /** null: not known, for workers come by themselves. */
  memory_bytes: number | null;
  workers: number;
  waiting: number;
  held: number;
  consumers: number;
}
export interface Glance {
  keys: KeyBar[];
  rest: { keys: number; memory_bytes: number; waiting: number; by_state: Record<string, number> };
  by_state: Record<string, number>;
}

/** A bar and the gap beside it, in px, at least. */
const LEAST = 6;
/** Of the strip, for all keys that have no bar of their own. */
const REST_MOST = 0.2;
const LABEL = 44;
const STATES = ["busy", "ready", "starting", "waiting", "unscheduled", "failed", "idle", "draining"];

export function PoolStrip({ vhost, live }: { vhost: string; live: Live<Glance> }) {
  const found = live.value;
  if (!found) return live.error ? <Panel title="Keys at a glance"><Waiting live={live} /></Panel> : null;
  if (!found.keys.length) return null;
  const known = found.keys.some((one) => one.memory_bytes !== null);
  return (
    <Panel title="Keys at a glance" side={<small>{known ? "width: memory of a worker of the key" : "workers come by themselves: all keys are as wide"}</small>}>
      <Bars vhost={vhost} of={found} />
      <p class="note states">
        {STATES.filter((state) => found.by_state[state]).map((state) => (
          <span key={state}>
            <i class={`state-key ${state}`} /> {state} <b>{number(found.by_state[state])}</b>
          </span>
        ))}
      </p>
    </Panel>
  );
}

/** As many bars as have room, and what the others come to. */
export function drawn(of: Glance, width: number): { keys: KeyBar[]; more: number; memory: number; waiting: number } {
  const most = Math.floor(width / LEAST);
  const keys = of.rest.keys || of.keys.length > most ? of.keys.slice(0, Math.max(1, Math.floor(most * (1 - REST_MOST)))) : of.keys;
  const left = of.keys.slice(keys.length);
  const sum = (field: "memory_bytes" | "waiting") => left.reduce((total, one) => total + (one[field] ?? 0), 0);
  return { keys, more: of.rest.keys + left.length, memory: of.rest.memory_bytes + sum("memory_bytes"), waiting: of.rest.waiting + sum("waiting") };
}

function Bars({ vhost, of }: { vhost: string; of: Glance }) {
  const { box, width } = useWidth();
  const [chosen, choose] = useState<string | null>(null);
  const { keys, more, memory, waiting } = drawn(of, width);
  const current = keys.find((one) => one.key === chosen);
  const grow = (one: KeyBar) => one.memory_bytes ?? 1;
  const total = keys.reduce((sum, one) => sum + grow(one), 0);
  const rest = Math.min(of.keys[0]?.memory_bytes == null ? more : memory, (total * REST_MOST) / (1 - REST_MOST));
  const goTo = (one: KeyBar) => {
    location.hash = link("queues", vhost, one.queue);
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Enter" && current) return goTo(current);
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const at = current === undefined ? (by > 0 ? -1 : keys.length) : keys.indexOf(current);
    const next = keys[Math.min(keys.length - 1, Math.max(0, at + by))];
    if (next) choose(next.key);
  };
  const label = `${plural(keys.length + more, "key")}, the largest first${more ? `; ${number(more)} of them in sum` : ""}. Arrow keys walk through them, Enter opens one.`;
  return (
    <>
      <div ref={box} class="strip" tabIndex={0} role="group" aria-label={label} onKeyDown={onKey} onMouseLeave={() => choose(null)}>
        {width > 0 &&
          keys.map((one) => (
            <span
              key={one.key}
              class={`bar ${one.state} ${one === current ? "chosen" : ""}`}
              style={{ flexGrow: grow(one) / total }}
              title={told(one)}
              aria-hidden="true"
              onMouseEnter={() => choose(one.key)}
              onClick={() => goTo(one)}
            >
              {(grow(one) / total) * width > LABEL && name(one)}
            </span>
          ))}
        {width > 0 && more > 0 && (
          <span class="bar rest" style={{ flexGrow: rest / total }} title={`${plural(more, "more key")}, ${number(waiting)} waiting`} aria-hidden="true">
            +{number(more)}
          </span>
        )}
      </div>
      <p class="said" aria-live="polite">
        {current ? (
          <>
            <b>{name(current)}</b> {told(current, false)}
          </>
        ) : (
          <span class="faint">{more ? `${plural(more, "more key")}${memory ? `, of ${bytes(memory)} in sum` : ""}${waiting ? `, with ${plural(waiting, "waiting request")}` : ""}: the table has them.` : "Point at a key, or walk with arrow keys. Click or Enter opens it."}</span>
        )}
      </p>
    </>
  );
}

const name = (one: KeyBar) => (one.key === "" ? "(empty)" : one.key);

function told(one: KeyBar, whole = true): string {
  const facts = [one.state, one.memory_bytes === null ? "" : bytes(one.memory_bytes), one.memory_bytes === null ? plural(one.consumers, "consumer") : plural(one.workers, "worker"), `${number(one.waiting)} waiting`, `${number(one.held)} held`];
  return `${whole ? `${name(one)}: ` : ""}${facts.filter(Boolean).join(", ")}`;
}
