// How far back the curves of a page reach. What the node keeps: the cluster's totals for a day, a queue that somebody looks
// at for an hour.
import { setQuery, usePlace } from "./live";

/** Name, seconds, seconds from point to point. */
const RANGES: [string, number, number][] = [
  ["1 minute", 60, 5],
  ["10 minutes", 600, 5],
  ["1 hour", 3_600, 60],
  ["8 hours", 28_800, 600],
  ["1 day", 86_400, 1_800],
];
const USUAL = "10 minutes";

/** What the chosen range asks of the API, and the choice. `longest`: seconds that are kept. */
export function useRange(longest: number) {
  const { query } = usePlace();
  const offered = RANGES.filter(([, age]) => age <= longest);
  const [name, age, step] = offered.find(([one]) => one === query.get("range")) ?? offered.find(([one]) => one === USUAL)!;
  const curves = `lengths_age=${age}&lengths_incr=${step}&msg_rates_age=${age}&msg_rates_incr=${step}`;
  const choice = (
    <label class="choice">
      <span class="hidden">Range of the charts</span>
      <select value={name} onChange={(event) => setQuery({ range: event.currentTarget.value === USUAL ? "" : event.currentTarget.value })}>
        {offered.map(([one]) => (
          <option key={one} value={one}>
            {one}
          </option>
        ))}
      </select>
    </label>
  );
  return { curves, choice, range: name };
}
