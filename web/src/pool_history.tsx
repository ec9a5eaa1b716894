// Starts and ends of a pool's workers over time: a row for each of the last ones, from its order over its readiness to its
// end, and a mark with the reason.
//
// One stop of the keyboard: arrow keys walk through the events, and the line below says what is chosen. The table has the same.
import { useState } from "preact/hooks";
import { plural } from "./format";
import type { Live } from "./live";
import { SPANS, clock, ticks, when } from "./moves";
import type { Life, PoolEvent } from "./pool_lives";
import { ending, lives, tone, words } from "./pool_lives";
import { useWidth } from "./timeline";
import { Empty, Panel, Table, Waiting } from "./ui";

const ROW = 22;
const BAR = 10;
const TOP = 8;
const AXIS = 24;
const EDGE = 14;
const ROWS = 16;
const ENOUGH = 12;
const LISTED = 50;
const LEGEND = [
  ["life-key starting", "starting"],
  ["life-key ready", "ready"],
  ["life-key leaving", "told to end"],
  ["life-dot", "ended as it was told"],
  ["life-dot bad", "ended by itself"],
] as const;

export function PoolHistory({ live }: { live: Live<PoolEvent[]> }) {
  const [chosenSpan, chooseSpan] = useState("");
  const events = live.value ?? [];
  const now = Date.now();
  const told = events.filter((event) => event.event !== "began");
  const began = events.find((event) => event.event === "began");
  const all = lives(told);
  const span = chosenSpan || fitting(all, now);
  return (
    <Panel
      title="Starts and ends of workers"
      side={
        <label class="span">
          <span class="hidden">Time range of starts and ends</span>
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
      <Waiting live={live} />
      {live.value && (told.length === 0 ? <Empty title="No worker has started or ended">Since {when(began?.at_ms ?? now)}, when the controller began.</Empty> : <Rows lives={all} events={told} span={SPANS.find(([value]) => value === span)![2]} now={now} />)}
      {told.length > 0 && (
        <>
          <p class="note states">
            {LEGEND.map(([kind, text]) => (
              <span key={text}>
                <i class={kind} /> {text}
              </span>
            ))}
          </p>
          {began && <p class="note">The controller's record begins at {when(began.at_ms)}.</p>}
          <details class="more">
            <summary>As a table</summary>
            <Table
              label="Starts and ends"
              items={told.slice(0, LISTED)}
              id={(event) => String(event.number)}
              columns={[
                { title: "Time", cell: (event) => <span class="nowrap">{when(event.at_ms)}</span> },
                { title: "Event", cell: (event) => event.event },
                { title: "What happened", cell: words },
              ]}
            />
            {told.length > LISTED && <p class="note">The newest {LISTED} of {told.length}; all are in the API (history).</p>}
          </details>
        </>
      )}
    </Panel>
  );
}

const begun = (life: Life): number => life.started ?? life.ready ?? 0;

/** The shortest span in which the newest few workers have begun. */
function fitting(all: Life[], now: number): string {
  const oldest = Math.min(...all.slice(0, ENOUGH).map((life) => life.started ?? life.ready ?? life.last));
  return SPANS.find(([, , ms]) => now - oldest < ms * 0.95)?.[0] ?? "all";
}

function Rows(props: { lives: Life[]; events: PoolEvent[]; span: number; now: number }) {
  const { box, width } = useWidth();
  const [chosen, choose] = useState<number | null>(null);
  const to = props.now;
  const from = Math.max(to - props.span, Math.min(...props.events.map((event) => event.at_ms), to - 1000));
  const inTime = props.lives.filter((life) => !life.exited || life.exited.at_ms >= from);
  const rows = inTime.slice(0, ROWS).sort((a, b) => begun(b) - begun(a));
  const row = new Map(rows.map((life, place) => [life.worker, place]));
  const shown = props.events.filter((event) => event.at_ms >= from && row.has(event.worker!)).sort((a, b) => a.number - b.number);

  const labels = rows.map((life) => (life.key === null ? "(no key)" : life.key === "" ? "(empty)" : life.key));
  const chars = Math.min(18, Math.max(...labels.map((label) => label.length), 1));
  const left = Math.min(chars * 7.5 + 14, width * 0.3);
  const fit = Math.floor((left - 14) / 7);
  const height = TOP + rows.length * ROW + AXIS;
  const x = (at: number) => left + ((Math.max(at, from) - from) / (to - from)) * (width - left - EDGE);
  const y = (place: number) => TOP + place * ROW + ROW / 2;
  const current = chosen === null ? undefined : shown.find((event) => event.number === chosen);
  const onKey = (event: KeyboardEvent) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const at = current === undefined ? (by > 0 ? -1 : shown.length) : shown.indexOf(current);
    const next = shown[Math.min(shown.length - 1, Math.max(0, at + by))];
    if (next) choose(next.number);
  };
  const nearest = (event: MouseEvent) => {
    const at = box.current!.getBoundingClientRect();
    const [px, py] = [event.clientX - at.left, event.clientY - at.top];
    const far = shown.map((one) => Math.hypot(x(one.at_ms) - px, 2 * (y(row.get(one.worker!)!) - py)));
    const found = far.indexOf(Math.min(...far));
    choose(found >= 0 && far[found]! < 60 ? shown[found]!.number : null);
  };
  const label = `${plural(shown.length, "start or end", "starts and ends")} of ${plural(rows.length, "worker")} since ${when(from)}. Arrow keys walk through them.`;
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
            {rows.map((life, place) => (
              <g key={life.worker} class="lane life">
                <text x={0} y={y(place) + 4}>
                  <title>{`${life.worker} at ${life.place}`}</title>
                  {labels[place]!.length > fit ? `${labels[place]!.slice(0, fit - 1)}…` : labels[place]}
                </text>
                <Bar life={life} x={x} y={y(place)} from={from} to={to} room={width - EDGE} />
              </g>
            ))}
            {current && <circle class="life-chosen" cx={x(current.at_ms)} cy={y(row.get(current.worker!)!)} r={BAR / 2 + 3} />}
          </svg>
        )}
      </div>
      <p class="said" aria-live="polite">
        {current ? (
          <>
            <b>{when(current.at_ms)}</b> {words(current)}
          </>
        ) : shown.length ? (
          <span class="faint">Choose a row to see what happened: click, or arrow keys.{inTime.length > rows.length && ` The ${rows.length} newest of ${inTime.length} workers are drawn.`}</span>
        ) : (
          <span class="faint">Nothing started or ended in this time.</span>
        )}
      </p>
    </>
  );
}

function Bar(props: { life: Life; x: (at: number) => number; y: number; from: number; to: number; room: number }) {
  const { life, x, y, from, to } = props;
  const end = life.exited?.at_ms ?? to;
  const begin = Math.max(from, life.started ?? from);
  const leaves = Math.min(life.leaves ?? end, end);
  const ready = life.ready === undefined ? leaves : Math.min(life.ready, leaves);
  const part = (kind: string, since: number, until: number) =>
    until > since && until > from && <rect class={kind} x={x(since)} y={y - BAR / 2} width={Math.max(1.5, x(until) - x(since))} height={BAR} rx={2} />;
  const reason = life.exited ? ending(life.exited) : "";
  const at = x(end) + 9;
  const fit = Math.floor((props.room - at) / 6.2);
  return (
    <>
      {part("starting", begin, ready)}
      {part("ready", Math.max(begin, ready), leaves)}
      {part("leaving", Math.max(begin, leaves), end)}
      {life.exited && <circle class={`life-end ${tone(life.exited)}`} cx={x(end)} cy={y} r={BAR / 2} />}
      {life.exited && fit > 8 && (
        <text class="life-why" x={at} y={y + 4}>
          {reason.length > fit ? `${reason.slice(0, fit - 1)}…` : reason}
        </text>
      )}
    </>
  );
}
