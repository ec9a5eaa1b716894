// Which vhosts there are, and what this user may do in them: what the page offers. The node checks all of it again.
import type { Kind, Me } from "./api";
import { useLive } from "./live";

const ASKED = "vhosts?columns=name,may";

interface Known {
  name: string;
  may: Kind[];
}

export function useVhosts(): string[] {
  const live = useLive<Known[]>(ASKED, 30_000);
  return live.value?.map((vhost) => vhost.name) ?? ["/"];
}

/** Those in which this user may declare something, of whatever name; none before the node has said so. */
export function useVhostsToDeclareIn(me: Me): string[] {
  const live = useLive<Known[]>(changer(me) ? ASKED : "", 30_000);
  return live.value?.filter((vhost) => vhost.may.includes("configure")).map((vhost) => vhost.name) ?? [];
}

/** Whether deeds on queues, exchanges and connections are offered at all: who only monitors reads. */
export function changer(me: Me): boolean {
  return me.tags.some((tag) => tag !== "monitoring");
}

const VERBS: Record<Kind, string> = { configure: "configure", write: "write to", read: "read" };

/** Why a deed on this queue or exchange would be refused: what the user's permissions lack; undefined: nothing. As long as the
    node has not said what they are, nothing is. */
export function lacking(may: Kind[] | undefined, name: string, ...needed: Kind[]): string | undefined {
  const missing = may && needed.find((kind) => !may.includes(kind));
  return missing && `Your permissions do not let you ${VERBS[missing]} ${name || "the default exchange"}.`;
}
