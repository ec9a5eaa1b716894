// Leadership over time, as lanes: one for each member, shaded while it was down or drained; a move is an arrow from one lane
// to another. Of a single queue its way is drawn instead, from lane to lane.
//
// One stop of the keyboard: arrow keys walk through what is shown, and the line below says what is chosen. The table has
// the same.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Node, Page } from "./api";
import { number } from "./format";
import type { Live } from "./live";
import type { Entry, Move } from "./moves";
import { SPANS, apart, clock, fitting, isMove, owners, stateOf, stretches, ticks, tone, when, words } from "./moves";
import { Panel, Table, Waiting } from "./ui";

const LANE = 34;
const TOP = 10;
const AXIS = 24;
const EDGE = 14;
const GAP = 13;
const LISTED = 50;
const NOBODY = "no leader";

/** `owner`: of the single queue that this is about; undefined: it is about all. */
export function TimelinePanel(props: { title: string; live: Live<Page<Entry>>; nodes: Node[]; members: string[]; owner?: string | null | undefined }) {
  const [chosenSpan, chooseSpan] = useState("");
  const entries = props.live.value?.items ?? [];
  const now = Date.now();
  const span = chosenSpan || fitting(entries, now);
  const began = entries.find((entry) => entry.kind === "record" && entry.what === "began");
  const moves = entries.filter(isMove);
  return (
    <Panel
      title={props.title}
      side={
        <label class="span">
          <span class="hidden">Time range</span>
          <select value={span} onChange={(event) => chooseSpan(event.currentTarget.value)}>
            {SPANS.map(([value, text]) => (
              <option key={value} value={value} selected={value === span}>
                {text}
              </option>
            ))}
          </select>
        </label>
      }
    >
      <Waiting live={props.live} />
      {props.live.value && (
        <>
          <Lanes entries={entries} span={SPANS.find(([value]) => value === span)![2]} now={now} nodes={props.nodes} members={props.members} owner={props.owner} />
          {props.owner === undefined && moves.length > 0 && (
            <p class="note legend-note">
              <i class="key plain" /> handed over <i class="key warn" /> drained <i class="key bad" /> leader lost <i class="band down" /> down <i class="band draining" /> draining
            </p>
          )}
          {began && <p class="note">This node's record begins at {when(began.at_ms)}; earlier events are not known here.</p>}
          {entries.length > 1 && (
            <details class="more">
              <summary>As a table</summary>
              <Table
                label="Time line"
                items={entries.slice(0, LISTED)}
                id={(entry) => String(entry.number)}
                columns={[
                  { title: "Time", cell: (entry) => <span class="nowrap">{when(entry.at_ms)}</span> },
                  { title: "Event", cell: (entry) => words(entry, props.owner !== undefined) },
                  { title: "Index", number: true, wide: true, cell: (entry) => number(entry.index) },
                ]}
              />
              {entries.length > LISTED && <p class="note">The newest {LISTED}; all are in /api/moves.</p>}
            </details>
          )}
        </>
      )}
    </Panel>
  );
}

export function useWidth() {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const sized = new ResizeObserver(() => setWidth(box.current?.clientWidth ?? 0));
    sized.observe(box.current!);
    return () => sized.disconnect();
  }, []);
  return { box, width };
}

function Lanes(props: { entries: Entry[]; span: number; now: number; nodes: Node[]; members: string[]; owner?: string | null | undefined }) {
  const { box, width } = useWidth();
  const [chosen, choose] = useState<number | null>(null);
  const alone = props.owner !== undefined;
  const from = Math.max(props.now - props.span, Math.min(...props.entries.map((entry) => entry.at_ms), props.now - 1000));
  const to = props.now;
  const shown = props.entries.filter((entry) => entry.at_ms >= from && !(entry.kind === "record" && entry.what === "began")).sort((a, b) => a.number - b.number);
  const named = props.entries.filter(isMove).flatMap((move) => [move.from, move.to]);
  const happened = props.entries.flatMap((entry) => (entry.kind === "member" ? [entry.member] : []));
  const lanes: (string | null)[] = [...new Set([...props.members, ...named, ...happened])].filter((name): name is string => name !== null).sort();
  if (named.includes(null)) lanes.push(null);

  const chars = Math.min(14, Math.max(...lanes.map((name) => (name ?? NOBODY).length), 1));
  const left = Math.min(chars * 7.5 + 14, width * 0.3);
  const height = TOP + lanes.length * LANE + AXIS;
  const x = (at: number) => left + ((Math.max(at, from) - from) / (to - from)) * (width - left - EDGE);
  const y = (name: string | null) => TOP + lanes.indexOf(name) * LANE + LANE / 2;
  const places = apart(
    shown.map((entry) => x(entry.at_ms)),
    left,
    width - EDGE,
    alone ? 0 : GAP,
  );
  const current = chosen === null ? undefined : shown.find((entry) => entry.number === chosen);
  const step = (by: number) => {
    const at = current === undefined ? (by > 0 ? -1 : shown.length) : shown.indexOf(current);
    const next = shown[Math.min(shown.length - 1, Math.max(0, at + by))];
    if (next) choose(next.number);
  };
  const onKey = (event: KeyboardEvent) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    step(by);
  };
  const nearest = (event: MouseEvent) => {
    const at = event.clientX - box.current!.getBoundingClientRect().left;
    const far = places.map((place) => Math.abs(place - at));
    const found = far.indexOf(Math.min(...far));
    choose(found >= 0 && far[found]! < 24 ? shown[found]!.number : null);
  };
  const label = `Time line of ${shown.length === 1 ? "1 entry" : `${shown.length} entries`} since ${when(from)}. Arrow keys walk through them.`;
  return (
    <>
      <div ref={box} class="timeline" tabIndex={0} role="group" aria-label={label} onKeyDown={onKey} onClick={nearest}>
        {width > 0 && (
          <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
            {ticks(from, to, Math.max(2, (width - left) / 90)).map((at) => (
              <g key={at} class="tick">
                <path d={`M${x(at)} ${TOP} V${height - AXIS}`} />
                <text x={Math.min(x(at), width - EDGE - 14)} y={height - 7} text-anchor="middle">
                  {clock(at, to - from)}
                </text>
              </g>
            ))}
            {lanes.map((name) => (
              <Lane key={name} name={name} y={y(name)} x={x} left={left} chars={Math.floor((left - 14) / 7)} from={from} to={to} entries={alone ? null : props.entries} node={props.nodes.find((node) => node.name === name)} />
            ))}
            {alone && <Way moves={props.entries.filter(isMove)} owner={props.owner!} x={x} y={y} from={from} to={to} />}
            {shown.map((entry, place) => (
              <Drawn key={entry.number} entry={entry} x={places[place]!} y={y} alone={alone} chosen={entry === current} bottom={height - AXIS} />
            ))}
          </svg>
        )}
      </div>
      <p class="said" aria-live="polite">
        {current ? (
          <>
            <b>{when(current.at_ms)}</b> {words(current, alone)}
            {current.kind === "moves" && (current.count ?? 1) > 1 && current.examples && <small> {some(current)}</small>}
          </>
        ) : shown.length ? (
          <span class="faint">Choose a mark to see what it was: click, or arrow keys.</span>
        ) : (
          <span class="faint">Nothing has moved in this time.</span>
        )}
      </p>
    </>
  );
}

function some(move: Move): string {
  const names = move.examples!.map((example) => example.queue);
  const more = (move.count ?? 0) - names.length;
  return `(${names.join(", ")}${more > 0 ? `, and ${number(more)} more` : ""})`;
}

function Lane(props: { name: string | null; y: number; x: (at: number) => number; left: number; chars: number; from: number; to: number; entries: Entry[] | null; node: Node | undefined }) {
  const { name, y, x } = props;
  const text = name ?? NOBODY;
  const parts = name === null || props.entries === null ? [] : stretches(name, props.entries, stateOf(props.node), props.from, props.to);
  return (
    <g class={`lane ${name === null ? "nobody" : ""}`}>
      <text x={0} y={y + 4}>
        <title>{text}</title>
        {text.length > props.chars ? `${text.slice(0, props.chars - 1)}…` : text}
      </text>
      <path class="rail" d={`M${x(props.from)} ${y} H${x(props.to)}`} />
      {parts.map((part) => (
        <rect key={part.from} class={`stretch ${part.state}`} x={x(part.from)} y={y - 8} width={Math.max(1, x(part.to) - x(part.from))} height={16} />
      ))}
    </g>
  );
}

/** The one queue's way. */
function Way(props: { moves: Move[]; owner: string | null; x: (at: number) => number; y: (name: string | null) => number; from: number; to: number }) {
  const parts = owners(props.moves, props.owner, props.from, props.to).filter((part) => part.to >= props.from);
  const points = parts.map((part) => `${props.x(Math.max(part.from, props.from))} ${props.y(part.owner)} H${props.x(part.to)}`);
  return <path class="way" d={`M${points.join(" L")}`} />;
}

function Drawn(props: { entry: Entry; x: number; y: (name: string | null) => number; alone: boolean; chosen: boolean; bottom: number }) {
  const { entry, x, y } = props;
  const kind = `mark ${tone(entry)} ${props.chosen ? "chosen" : ""}`;
  if (entry.kind === "record" || entry.kind === "level")
    return (
      <g class={kind}>
        <path class="gap" d={`M${x} ${TOP} V${props.bottom}`} />
      </g>
    );
  if (entry.kind === "member")
    return (
      <g class={kind}>
        <rect x={x - 4} y={y(entry.member) - 4} width={8} height={8} transform={`rotate(45 ${x} ${y(entry.member)})`} />
      </g>
    );
  const [start, end] = [y(entry.from), y(entry.to)];
  if (props.alone || start === end)
    return (
      <g class={kind}>
        <circle cx={x} cy={end} r={4.5} />
      </g>
    );
  const down = end > start ? 1 : -1;
  const count = entry.count ?? 1;
  return (
    <g class={kind}>
      <path class="arrow" stroke-width={1.5 + Math.min(3, Math.log10(count))} d={`M${x} ${start + 4 * down} V${end - 8 * down}`} />
      <path class="head" d={`M${x} ${end - 2 * down} l-5 ${-8 * down} h10 z`} />
      {count > 1 && (
        <text x={x + 6} y={(start + end) / 2 + 4}>
          {number(count)}
        </text>
      )}
    </g>
  );
}
