// Places where a worker pool starts its workers: their room, and why nothing is started there.
import type { PoolPlace } from "./api";
import { bytes, number, span } from "./format";
import { link } from "./live";
import { Panel, Pill, Table } from "./ui";

const size = (value: number | null) => (value === null ? "not known" : bytes(value));

export function PoolPlaces({ places }: { places: PoolPlace[] }) {
  return (
    <Panel title="Places">
      <Table
        label="Places"
        items={places}
        id={(place) => place.place}
        columns={[
          {
            title: "Node",
            cell: (place) => (
              <a class="name" href={link("cluster", place.place)}>
                {place.place}
              </a>
            ),
          },
          {
            title: "State",
            cell: (place) => (
              <>
                <Pill kind={place.state === "ready" ? "good" : "warn"}>{place.state.replace("_", " ")}</Pill> {place.why}
                {place.suspended_for_s > 0 && ` (for ${span(1000 * place.suspended_for_s)})`}
              </>
            ),
          },
          { title: "Workers", number: true, cell: (place) => `${number(place.workers)}${place.workers_max === null ? "" : ` of ${number(place.workers_max)}`}` },
          {
            title: "Promised memory",
            cell: (place) => (
              <>
                {place.room_bytes !== null && (
                  <meter
                    aria-label={`Memory promised at ${place.place}`}
                    min={0}
                    max={Math.max(1, place.room_bytes)}
                    high={0.9 * place.room_bytes}
                    value={place.promised_bytes ?? 0}
                  />
                )}{" "}
                {size(place.promised_bytes)} of {size(place.room_bytes)}
              </>
            ),
          },
          { title: "Used by all pools", number: true, wide: true, cell: (place) => bytes(place.machine.used_bytes) },
          { title: "Driver", wide: true, cell: (place) => place.driver ?? "none" },
        ]}
      />
    </Panel>
  );
}
