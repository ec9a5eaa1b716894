// The vhost whose queues, exchanges and connections the lists show. The choice holds from page to page until the tab is closed.
import { useEffect, useState } from "preact/hooks";
import { path } from "./api";
import { setQuery } from "./live";

const KEPT = "vhost";
const listeners = new Set<() => void>();

const chosen = () => sessionStorage.getItem(KEPT) ?? "";

function choose(vhost: string): void {
  sessionStorage.setItem(KEPT, vhost);
  setQuery({ page: "" });
  for (const listener of listeners) listener();
}

/** Empty: all. One that is gone is none. */
export function useVhost(vhosts: string[]): string {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((count) => count + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return vhosts.includes(chosen()) ? chosen() : "";
}

/** The list's path: of all vhosts, or of the chosen one. */
export const listed = (list: string, vhost: string) => (vhost ? `${list}/${path(vhost)}` : list);

/** Nothing where there is one vhost. */
export function VhostChoice(props: { vhosts: string[]; vhost: string }) {
  if (props.vhosts.length < 2) return null;
  return (
    <label class="choice">
      <span class="hidden">Vhost of the list</span>
      <select value={props.vhost} onChange={(event) => choose(event.currentTarget.value)}>
        <option value="">all vhosts</option>
        {props.vhosts.map((vhost) => (
          <option key={vhost} value={vhost}>
            {vhost}
          </option>
        ))}
      </select>
    </label>
  );
}
