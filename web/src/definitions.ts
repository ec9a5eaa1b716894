// What an import of definitions would do, told from the document and from what the node exports now. Only a comparison:
// whether an import is taken is the node's to say.
type Entry = Record<string, unknown>;

interface Section {
  name: string;
  /** What tells two entries apart; what else an entry says, with what the node takes when it is left out. */
  key: Entry;
  rest: Entry;
  /** Of the whole cluster: left out when one vhost is imported. */
  ofCluster?: boolean;
  /** What is there is never changed: another one of the same key is refused. */
  fixed?: boolean;
}

const POLICY = { pattern: "", "apply-to": "all", priority: 0, definition: {} };
const FLAGS = { durable: true, auto_delete: false, arguments: {} };
const SHA256 = "rabbit_password_hashing_sha256";

const SECTIONS: Section[] = [
  { name: "vhosts", key: { name: "" }, rest: { description: "", tags: [], default_queue_type: null }, ofCluster: true },
  { name: "users", key: { name: "" }, rest: { password: null, password_hash: "", hashing_algorithm: SHA256, tags: [], limits: {} }, ofCluster: true },
  { name: "permissions", key: { user: "", vhost: "" }, rest: { configure: "", write: "", read: "" }, ofCluster: true },
  { name: "topic_permissions", key: { user: "", vhost: "", exchange: "" }, rest: { write: "", read: "" }, ofCluster: true },
  { name: "parameters", key: { name: "", component: "", vhost: "" }, rest: { value: null } },
  { name: "global_parameters", key: { name: "" }, rest: { value: null }, ofCluster: true },
  { name: "policies", key: { name: "", vhost: "" }, rest: POLICY },
  { name: "operator_policies", key: { name: "", vhost: "" }, rest: POLICY },
  { name: "queues", key: { name: "", vhost: "" }, rest: FLAGS, fixed: true },
  { name: "exchanges", key: { name: "", vhost: "" }, rest: { type: "", internal: false, ...FLAGS }, fixed: true },
  { name: "bindings", key: { source: "", destination: "", destination_type: "queue", routing_key: "", vhost: "", arguments: {} }, rest: {} },
];

export interface Compared {
  section: string;
  /** Names of what is new, and of what is there and says something else. */
  fresh: string[];
  changed: string[];
  same: number;
  fixed: boolean;
  /** Entries that are passed over, for they are not of one vhost. */
  passed: number;
}

/** Section by section those that the document has. `vhost`: all goes into this one. Throws an Error that says what is no list
    and no object; the node says what else is wrong. */
export function compared(document: unknown, now: unknown, vhost: string | undefined): Compared[] {
  if (!isEntry(document)) throw new Error("Definitions are an object, as a download has it.");
  return SECTIONS.flatMap((section) => {
    const given = entries(document, section.name);
    if (!given.length) return [];
    const answer: Compared = { section: section.name.replaceAll("_", " "), fresh: [], changed: [], same: 0, fixed: section.fixed ?? false, passed: 0 };
    if (vhost !== undefined && section.ofCluster) return [{ ...answer, passed: given.length }];
    const there = new Map(entries(isEntry(now) ? now : {}, section.name).map((entry): [string, string] => [told(entry, section.key, vhost), told(entry, section.rest, vhost)]));
    for (const entry of given) {
      const rest = there.get(told(entry, section.key, vhost));
      if (rest === told(entry, section.rest, vhost) || byItself(section, entry)) answer.same++;
      else (rest === undefined ? answer.fresh : answer.changed).push(shown(entry, section));
    }
    return [answer];
  });
}

function entries(document: Entry, section: string): Entry[] {
  let found: unknown = document[section] ?? [];
  if (section === "global_parameters" && isEntry(found)) found = Object.entries(found).map(([name, value]) => ({ name, value }));
  if (!Array.isArray(found)) throw new Error(`${section}: not a list`);
  found.forEach((entry: unknown, place) => {
    if (!isEntry(entry)) throw new Error(`${section}[${place}]: not an object`);
  });
  if (section !== "operator_policies") return found;
  // an export has them among the parameters
  const exported = entries(document, "parameters").filter((entry) => entry["component"] === "operator_policy");
  return [...exported.map(({ name, vhost, value }) => ({ ...(value as Entry), name, vhost })), ...found];
}

/** The fields as one text, whatever their order and way of writing. */
function told(entry: Entry, fields: Entry, vhost: string | undefined): string {
  const metadata = isEntry(entry["metadata"]) ? entry["metadata"] : {};
  const values = Object.entries(fields).map(([field, left]) => {
    if (field === "vhost" && vhost !== undefined) return vhost;
    const value = entry[field] ?? metadata[field] ?? left;
    return field === "tags" && typeof value === "string" ? value.split(",").map((tag) => tag.trim()).filter(Boolean) : value;
  });
  return JSON.stringify(values, (_, value: unknown) => (isEntry(value) ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) : value));
}

/** Exchanges that every vhost has are in no export. */
function byItself(section: Section, entry: Entry): boolean {
  return section.name === "exchanges" && (entry["name"] === "" || String(entry["name"]).startsWith("amq."));
}

function shown(entry: Entry, section: Section): string {
  if (section.name === "bindings") return `${entry["source"]} → ${entry["destination"]}${entry["routing_key"] ? ` (${entry["routing_key"]})` : ""}`;
  return String(entry["name"] ?? [entry["user"], entry["vhost"], entry["exchange"]].filter((part) => part !== undefined).join(", "));
}

function isEntry(value: unknown): value is Entry {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
