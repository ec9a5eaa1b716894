// What the history of a worker pool tells, put into lives of workers and into words. Nothing here draws.
import { bytes, span } from "./format";

export interface PoolEvent {
  number: number;
  at_ms: number;
  event: "started" | "assigned" | "ready" | "retired" | "revoked" | "exited" | "began";
  worker?: string;
  /** null: a spare, or a worker of several keys. */
  key?: string | null;
  place?: string;
  why?: string;
  detail?: string;
  exit_status?: number | null;
  peak_bytes?: number;
  took_ms?: number | null;
  was_ready?: boolean | null;
}

/** A worker, as far as its history is told. Times are ms since 1970. */
export interface Life {
  worker: string;
  key: string | null;
  place: string;
  started: number | undefined;
  ready: number | undefined;
  /** It is to end. */
  leaves: number | undefined;
  exited: PoolEvent | undefined;
  last: number;
}

export type Tone = "plain" | "good" | "warn" | "bad";

/** The one with the newest event first. */
export function lives(events: PoolEvent[]): Life[] {
  const found = new Map<string, Life>();
  for (const event of [...events].reverse()) {
    if (event.worker === undefined) continue;
    const life: Life = found.get(event.worker) ?? { worker: event.worker, key: null, place: event.place ?? "", started: undefined, ready: undefined, leaves: undefined, exited: undefined, last: 0 };
    life.key = event.key ?? life.key;
    life.last = event.at_ms;
    if (event.event === "started") life.started = event.at_ms;
    if (event.event === "ready") life.ready ??= event.at_ms;
    if (event.event === "retired" || event.event === "revoked") life.leaves ??= event.at_ms;
    if (event.event === "exited") {
      life.exited = event;
      if (life.ready === undefined && event.took_ms != null) life.ready = event.at_ms - event.took_ms;
    }
    found.set(event.worker, life);
  }
  return [...found.values()].sort((a, b) => b.last - a.last);
}

export function tone(event: PoolEvent): Tone {
  switch (event.event) {
    case "ready":
      return "good";
    case "retired":
    case "revoked":
      return "warn";
    case "exited":
      return event.why ? "plain" : "bad";
    default:
      return "plain";
  }
}

export const keyed = (key: string | null | undefined): string => (key == null ? "no key of its own" : key === "" ? "the empty key" : `key ${key}`);

/** Why a worker is gone. */
export function ending(event: PoolEvent): string {
  const status = event.exit_status == null ? "" : `exit status ${event.exit_status}`;
  const detail = event.detail && event.detail !== status ? event.detail : "";
  return [event.why || (event.was_ready === false ? "its start failed" : "it ended by itself"), status, detail].filter(Boolean).join(", ");
}

export function words(event: PoolEvent): string {
  const who = `${event.worker} (${keyed(event.key)}) at ${event.place}`;
  switch (event.event) {
    case "began":
      return "Earlier starts and ends are not known here";
    case "started":
      return `${who} was ordered`;
    case "assigned":
      return `${who} got its key`;
    case "ready":
      return `${who} is ready${event.took_ms ? `, ${short(event.took_ms)} after its order` : ""}`;
    case "retired":
      return `${who} gets no more requests: ${event.why}`;
    case "revoked":
      return `${who} may work no more: ${event.why}`;
    case "exited":
      return `${who} is gone: ${ending(event)}${event.peak_bytes ? `; it took ${bytes(event.peak_bytes)}` : ""}${event.took_ms ? `; it was ready for ${short(event.took_ms)}` : ""}`;
  }
}

const short = (ms: number): string => (ms < 1000 ? `${ms} ms` : span(ms));
