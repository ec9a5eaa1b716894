// An exchange and its bindings as a picture: who sends into it on the left, it in the middle, where it sends on the right.
import type { Binding, Exchange } from "./api";
import { link } from "./live";
import { Empty } from "./ui";

const WIDE = 184;
const HIGH = 30;
const STEP = 44;
const GAP = 244;
const BEND = 78;
const ENDS_MAX = 24;
const KEYS_MAX = 3;

interface End {
  name: string;
  kind: "queue" | "exchange";
  keys: string[];
}

/** One end for each name, with the keys of all bindings to it. */
export function ends(bindings: Binding[], side: "source" | "destination"): End[] {
  const found = new Map<string, End>();
  for (const binding of bindings) {
    const kind = side === "source" ? "exchange" : binding.destination_type;
    const id = `${kind} ${binding[side]}`;
    const end = found.get(id) ?? { name: binding[side], kind, keys: [] };
    const told = Object.entries(binding.arguments).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
    end.keys.push([binding.routing_key, ...told].filter(Boolean).join(" "));
    found.set(id, end);
  }
  return [...found.values()];
}

const cut = (text: string, size: number) => (text.length > size ? `${text.slice(0, size - 1)}…` : text);

function keys(end: End): string {
  const said = end.keys.filter(Boolean);
  const more = said.length > KEYS_MAX ? ` +${said.length - KEYS_MAX}` : "";
  return cut(said.slice(0, KEYS_MAX).join(", "), 23) + more;
}

export function Picture({ exchange, into, out }: { exchange: Exchange; into: Binding[]; out: Binding[] }) {
  const left = ends(into, "source");
  const right = ends(out, "destination");
  if (!left.length && !right.length)
    return <Empty title="No binding leads here or away">{exchange.name === "" ? "There are no queues in this vhost yet." : "Bind a queue to this exchange, and it is drawn here."}</Empty>;
  const shownLeft = left.slice(0, ENDS_MAX);
  const shownRight = right.slice(0, ENDS_MAX);
  const rows = Math.max(shownLeft.length, shownRight.length, 1);
  const height = rows * STEP + 16;
  const middle = height / 2;
  const start = shownLeft.length ? WIDE + GAP : 8;
  const width = start + WIDE + (shownRight.length ? GAP + WIDE : 0) + 8;
  const y = (place: number, count: number) => middle + (place - (count - 1) / 2) * STEP;
  const name = exchange.name || "(default exchange)";
  return (
    <div class="scroll picture">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label={`${name} with ${left.length} sources and ${right.length} destinations`}>
        {shownLeft.map((end, place) => (
          <Edge key={end.name} x1={WIDE + 8} y1={y(place, shownLeft.length)} x2={start} y2={middle} text={keys(end)} textAt="start" />
        ))}
        {shownRight.map((end, place) => (
          <Edge key={`${end.kind} ${end.name}`} x1={start + WIDE} y1={middle} x2={start + WIDE + GAP} y2={y(place, shownRight.length)} text={keys(end)} textAt="end" />
        ))}
        {shownLeft.map((end, place) => (
          <Box key={end.name} x={8} y={y(place, shownLeft.length)} end={end} vhost={exchange.vhost} />
        ))}
        <g class="box self">
          <rect x={start} y={middle - HIGH / 2 - 4} width={WIDE} height={HIGH + 8} rx={19} />
          <text x={start + WIDE / 2} y={middle - 1} text-anchor="middle">
            {cut(name, 22)}
          </text>
          <text class="small" x={start + WIDE / 2} y={middle + 12} text-anchor="middle">
            {exchange.type}
          </text>
        </g>
        {shownRight.map((end, place) => (
          <Box key={`${end.kind} ${end.name}`} x={start + WIDE + GAP} y={y(place, shownRight.length)} end={end} vhost={exchange.vhost} />
        ))}
      </svg>
      {(left.length > ENDS_MAX || right.length > ENDS_MAX) && (
        <p class="note">
          Drawn are the first {ENDS_MAX} of {Math.max(left.length, right.length)}; the table has all.
        </p>
      )}
    </div>
  );
}

function Edge(props: { x1: number; y1: number; x2: number; y2: number; text: string; textAt: "start" | "end" }) {
  const far = props.textAt === "end";
  // the key is written at the far box, on a straight piece of the line, where lines are apart
  const x = far ? props.x2 - 10 : props.x1 + 10;
  const y = (far ? props.y2 : props.y1) - 5;
  const { x1, y1, x2, y2 } = props;
  const line = far
    ? `M${x1} ${y1} C${x1 + BEND * 0.6} ${y1} ${x1 + BEND * 0.4} ${y2} ${x1 + BEND} ${y2} H${x2 - 6}`
    : `M${x1} ${y1} H${x2 - BEND} C${x2 - BEND * 0.4} ${y1} ${x2 - BEND * 0.6} ${y2} ${x2 - 6} ${y2}`;
  return (
    <g class="edge">
      <path d={line} />
      <path class="head" d={`M${props.x2} ${props.y2} l-7 -4 v8 z`} />
      <text x={x} y={y} text-anchor={far ? "end" : "start"}>
        {props.text}
      </text>
    </g>
  );
}

function Box(props: { x: number; y: number; end: End; vhost: string }) {
  const { end } = props;
  return (
    <a class={`box ${end.kind}`} href={link(`${end.kind}s`, props.vhost, end.name || "amq.default")} aria-label={`${end.kind} ${end.name}, keys: ${end.keys.filter(Boolean).join(", ") || "none"}`}>
      <title>{`${end.kind} ${end.name}\n${end.keys.join("\n")}`}</title>
      <rect x={props.x} y={props.y - HIGH / 2} width={WIDE} height={HIGH} rx={end.kind === "queue" ? 4 : 15} />
      <text x={props.x + 12} y={props.y + 4}>
        {cut(end.name || "(default exchange)", 23)}
      </text>
    </a>
  );
}
