// What the time line tells, put into words and into stretches of time. Nothing here draws.
import type { Node } from "./api";
import { plural } from "./format";

interface Told {
  /** Ascending, and unique while the node's management process lives. */
  number: number;
  at_ms: number;
  index: number;
}
export interface Move extends Told {
  kind: "move" | "moves";
  from: string | null;
  to: string | null;
  why: string;
  /** Of one move. */
  vhost?: string;
  queue?: string;
  epoch?: number;
  /** Of several. */
  count?: number;
  examples?: { vhost: string; queue: string }[];
  began_ms?: number;
}
export interface Happened extends Told {
  kind: "member";
  member: string;
  what: string;
}
export interface Mark extends Told {
  kind: "record";
  what: "began" | "gap";
}
export interface Raised extends Told {
  kind: "level";
  level: number;
}
export type Entry = Move | Happened | Mark | Raised;

export const isMove = (entry: Entry): entry is Move => entry.kind === "move" || entry.kind === "moves";

const WHAT: Record<string, string> = {
  joined: "joined",
  up: "is up",
  restarted: "restarted",
  down: "was declared down",
  draining: "drains",
  leaving: "drains before leaving",
  undrained: "takes queues again",
  left: "left",
  forgotten: "was forgotten",
};

function reason(move: Move): string {
  switch (move.why) {
    case "moved":
      return "handed over";
    case "drained":
      return `${move.from} drains`;
    case "failed":
      return `${move.from} was declared down`;
    case "returned":
      return `${move.to} is up again`;
    case "forced":
      return "forced by an operator";
    case "unseen":
      return "while this node was cut off, reason unknown";
    case "forgotten":
      return "a member was forgotten";
    case "replicas":
      return "its replicas were changed";
    default:
      return move.why;
  }
}

/** `one` is the only queue that is spoken of. */
export function words(entry: Entry, one = false): string {
  if (entry.kind === "record") return entry.what === "gap" ? "This node was cut off: changes of that time are known by their result only" : "Earlier events are not known here";
  if (entry.kind === "level") return `The cluster's feature level was raised to ${entry.level}`;
  if (entry.kind === "member") return `${entry.member} ${WHAT[entry.what] ?? entry.what}`;
  const what = one ? "" : `${entry.kind === "moves" ? named(entry) : entry.queue} `;
  if (entry.from === entry.to) return `${what}stays at ${entry.to}, in a new epoch: ${reason(entry)}`.trimStart();
  const way = entry.to === null ? `has no leader, ${entry.from} was the last` : `${entry.from ?? "no leader"} → ${entry.to}`;
  return `${what}${way}: ${reason(entry)}`.trimStart();
}

function named(move: Move): string {
  const [first] = move.examples ?? [];
  return move.count === 1 && first ? first.queue : plural(move.count ?? 1, "queue");
}

/** Kinds of marks: the style sheet has a colour for each. */
export function tone(entry: Entry): "bad" | "warn" | "good" | "plain" {
  if (isMove(entry)) return entry.to === null || entry.why === "failed" || entry.why === "forced" ? "bad" : entry.why === "drained" || entry.why === "unseen" ? "warn" : "plain";
  if (entry.kind === "record") return "warn";
  if (entry.kind === "level") return "good";
  if (entry.what === "down" || entry.what === "forgotten") return "bad";
  return entry.what === "draining" || entry.what === "leaving" || entry.what === "left" ? "warn" : "good";
}

// -- stretches ------------------------------------------------------------------------------------------------------

export type State = "alive" | "draining" | "down" | "absent";
export interface Stretch {
  from: number;
  to: number;
  state: State;
}

const AFTER: Record<string, State> = {
  joined: "down",
  up: "alive",
  restarted: "alive",
  down: "down",
  draining: "draining",
  leaving: "draining",
  undrained: "alive",
  left: "absent",
  forgotten: "absent",
};
const BEFORE: Record<string, State> = { joined: "absent", up: "down", restarted: "alive", down: "alive", draining: "alive", leaving: "alive", undrained: "draining", left: "draining", forgotten: "down" };

/** How a member was, from `from` to `to`. Before the first that is told of it, it was what that presupposes. */
export function stretches(member: string, entries: Entry[], now: State, from: number, to: number): Stretch[] {
  const own = entries.filter((entry): entry is Happened => entry.kind === "member" && entry.member === member).sort((a, b) => a.number - b.number);
  let state: State = own.length ? (BEFORE[own[0]!.what] ?? now) : now;
  let at = from;
  const found: Stretch[] = [];
  for (const entry of own) {
    if (entry.at_ms > at) {
      found.push({ from: at, to: entry.at_ms, state });
      at = entry.at_ms;
    }
    state = AFTER[entry.what] ?? state;
  }
  found.push({ from: at, to, state });
  return found.filter((one) => one.to > one.from);
}

export function stateOf(node: Node | undefined): State {
  if (node === undefined) return "absent";
  if (!node.running) return "down";
  return node.draining ? "draining" : "alive";
}

/** Who owned the one queue when: from its moves, and from who owns it now. */
export function owners(moves: Move[], now: string | null, from: number, to: number): { from: number; to: number; owner: string | null }[] {
  const own = [...moves].sort((a, b) => a.number - b.number);
  let owner = own.length ? own[0]!.from : now;
  let at = from;
  const found = [];
  for (const move of own) {
    found.push({ from: at, to: Math.max(at, move.at_ms), owner });
    at = Math.max(at, move.at_ms);
    owner = move.to;
  }
  found.push({ from: at, to, owner });
  return found;
}

export const SPANS: [string, string, number][] = [
  ["1m", "1 minute", 60_000],
  ["10m", "10 minutes", 600_000],
  ["1h", "1 hour", 3_600_000],
  ["1d", "1 day", 86_400_000],
  ["all", "All", Number.POSITIVE_INFINITY],
];
const ENOUGH = 25;

/** The shortest span that shows something: the newest few entries, or all. */
export function fitting(entries: Entry[], now: number): string {
  const wanted = entries.filter((entry) => !(entry.kind === "record" && entry.what === "began")).slice(0, ENOUGH);
  const oldest = wanted[wanted.length - 1];
  if (oldest === undefined) return "all";
  return SPANS.find(([, , ms]) => now - oldest.at_ms < ms * 0.95)![0];
}

/** Where marks are drawn that would lie upon each other: in their order, `gap` apart where there is room. */
export function apart(places: number[], low: number, high: number, gap: number): number[] {
  const least = Math.min(gap, (high - low) / Math.max(1, places.length - 1));
  const found = [...places];
  for (let i = 1; i < found.length; i++) found[i] = Math.max(found[i]!, found[i - 1]! + least);
  for (let i = found.length - 1; i >= 0; i--) found[i] = Math.min(found[i]!, i === found.length - 1 ? high : found[i + 1]! - least);
  return found;
}

const STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800].map((seconds) => seconds * 1000);

/** Round times, of which about `room` have room, by the clock of the reader. */
export function ticks(from: number, to: number, room: number): number[] {
  const step = STEPS.find((one) => (to - from) / one <= room) ?? STEPS[STEPS.length - 1]!;
  const shift = new Date(from).getTimezoneOffset() * 60_000;
  const found = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) found.push(at);
  return found;
}

export function clock(at: number, span: number): string {
  const date = new Date(at);
  const time = date.toLocaleTimeString("en-GB", span < 600_000 * 1.01 ? {} : { hour: "2-digit", minute: "2-digit" });
  return span > 86_400_000 * 1.5 ? `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}` : time;
}

/** To the second; of another day with the day. */
export function when(at: number): string {
  const date = new Date(at);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}
