// Which vhosts there are, and whether this user has anything to offer to change in them.
import type { Me } from "./api";
import { useLive } from "./live";

export function useVhosts(): string[] {
  const live = useLive<{ name: string }[]>("vhosts?columns=name", 30_000);
  return live.value?.map((vhost) => vhost.name) ?? ["/"];
}

/** Whether deeds on queues, exchanges and connections are offered: who only monitors reads. The node checks all of it
    again by the user's permissions. */
export function changer(me: Me): boolean {
  return me.tags.some((tag) => tag !== "monitoring");
}
