// Curves over time. Colours come from the style sheet, so they follow light and dark.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Counted } from "./api";
import { details } from "./api";
import { short } from "./format";

export interface Line {
  label: string;
  field: string;
  colour: number;
}

const HEIGHT = 168;

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Samples of totals become rates between neighbours; samples of gauges are shown as they are. */
export function columns(of: Counted | undefined, lines: Line[], rates: boolean): uPlot.AlignedData {
  const series = lines.map((line) => [...(details(of, line.field)?.samples ?? [])].reverse());
  const times = [...new Set(series.flatMap((samples) => samples.map((sample) => sample.timestamp)))].sort((a, b) => a - b);
  const values = series.map((samples) => {
    const at = new Map(samples.map((sample) => [sample.timestamp, sample.sample]));
    return times.map((time, index) => {
      const now = at.get(time);
      if (now === undefined || !rates) return now ?? null;
      const before = index ? at.get(times[index - 1]!) : undefined;
      if (before === undefined) return null;
      return (Math.max(0, now - before) * 1000) / (time - times[index - 1]!);
    });
  });
  return [times.map((time) => time / 1000), ...values];
}

export function Chart(props: { title: string; of: Counted | undefined; lines: Line[]; rates?: boolean; range: string }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const data = columns(props.of, props.lines, props.rates ?? false);
  const latest = useRef(data);
  latest.current = data;
  const shown = props.lines.map((line) => line.label).join(",");

  useEffect(() => {
    const target = box.current!;
    const draw = () => {
      plot.current?.destroy();
      const text = css("--faint");
      const axis = { stroke: text, grid: { stroke: css("--rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      plot.current = new uPlot(
        {
          width: Math.max(200, target.clientWidth),
          height: HEIGHT,
          padding: [6, 30, 0, 0],
          legend: { show: false },
          cursor: { y: false, points: { size: 6 } },
          scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 4] } },
          axes: [
            { ...axis, size: 26, space: 70, values: (plot, ticks) => ticks.map((tick) => (plot.data[0].length ? new Date(tick * 1000).toLocaleTimeString("en-GB") : "")) },
            { ...axis, size: 48, space: 32, values: (_plot, ticks) => ticks.map((tick) => (tick < 1 ? String(Number(tick.toFixed(2))) : short(tick))) },
          ],
          series: [
            {},
            ...props.lines.map((line) => ({
              label: line.label,
              stroke: css(`--line-${line.colour}`),
              width: 1.75,
              points: { show: false },
              fill: line.colour === 1 ? css("--line-1-fill") : undefined,
            })),
          ],
        },
        latest.current,
        target,
      );
    };
    draw();
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(200, target.clientWidth), height: HEIGHT }));
    sized.observe(target);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      sized.disconnect();
      scheme.removeEventListener("change", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shown]);

  useEffect(() => plot.current?.setData(data));

  const last = data.slice(1).map((values) => {
    for (let place = values.length - 1; place >= 0; place--) if (values[place] != null) return values[place] as number;
    return 0;
  });
  const said = props.lines.map((line, place) => `${line.label} ${short(last[place] ?? 0)}${props.rates ? "/s" : ""}`);
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{props.title}</span>
        <span class="legend">
          {props.lines.map((line, place) => (
            <span key={line.label}>
              <i class={`swatch line-${line.colour}`} />
              {line.label} <b>{short(last[place] ?? 0) + (props.rates ? "/s" : "")}</b>
            </span>
          ))}
        </span>
      </figcaption>
      <div ref={box} role="img" aria-label={`${props.title}, last ${props.range}. Now: ${said.join(", ")}`} />
    </figure>
  );
}
