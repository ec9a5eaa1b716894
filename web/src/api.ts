// The management API of the node that served this page. Every request says `x-csrf: 1`: with it a session may change
// things, and a 401 opens no window of the browser's own.

export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly reason: string,
  ) {
    super(reason);
  }
}

export interface Me {
  name: string;
  tags: string[];
}

let onSignedOut: () => void = () => {};
let onStale: (seconds: number | null) => void = () => {};

/** Who wants to know that the session is over, and that the node is cut off. */
export function listen(signedOut: () => void, stale: (seconds: number | null) => void): void {
  onSignedOut = signedOut;
  onStale = stale;
}

/** A body that is a text is JSON already: what a file says is passed on as it is. */
export async function request<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = { "x-csrf": "1", accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(`/api/${path}`, {
      method,
      headers,
      body: body === undefined || typeof body === "string" ? body : JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch {
    onStale(null); // what it last said of itself is old
    throw new Refused(0, "The node does not answer. It may be restarting: this page goes on by itself.");
  }
  const stale = answer.headers.get("x-clusterbroker-stale");
  onStale(stale === null ? null : Number(stale));
  const text = await answer.text();
  if (answer.ok) return (text ? JSON.parse(text) : null) as T;
  let reason = `${answer.status} ${answer.statusText}`;
  try {
    const told = (JSON.parse(text) as { reason?: unknown }).reason;
    if (told !== undefined) reason = typeof told === "string" ? told : JSON.stringify(told);
  } catch {
    // not JSON: the status says it
  }
  if (answer.status === 401 && reason === "Login failed" && path !== "login") onSignedOut();
  throw new Refused(answer.status, reason);
}

export const get = <T>(path: string) => request<T>("GET", path);
export const put = (path: string, body: unknown) => request<null>("PUT", path, body);
export const post = <T = null>(path: string, body: unknown) => request<T>("POST", path, body);
export const del = (path: string) => request<null>("DELETE", path);

/** A path of names, each percent-encoded; the default exchange has its own name there. */
export function path(...names: string[]): string {
  return names.map(encodeURIComponent).join("/");
}

export const exchangeInPath = (name: string) => (name === "" ? "amq.default" : name);

/** What a permission lets a user do with a queue or an exchange. */
export type Kind = "configure" | "write" | "read";
export type Right = "administrator" | "monitoring" | "policymaker";

export function may(me: Me, right: Right): boolean {
  return me.tags.includes("administrator") || me.tags.includes(right);
}

export interface Sample {
  sample: number;
  timestamp: number;
}
export interface Details {
  rate: number;
  samples?: Sample[];
}
/** `{messages: 3, messages_details: {rate, samples}}` */
export type Counted = Record<string, number | Details | undefined>;

export const count = (of: Counted | undefined, field: string): number => (of?.[field] as number | undefined) ?? 0;
export const details = (of: Counted | undefined, field: string): Details | undefined =>
  of?.[`${field}_details`] as Details | undefined;
export const rate = (of: Counted | undefined, field: string): number => details(of, field)?.rate ?? 0;

export interface Overview {
  cluster_name: string;
  node: string;
  product_version: string;
  message_stats: Counted;
  queue_totals: Counted;
  churn_rates: Counted;
  object_totals: Record<string, number>;
  listeners: { node: string; protocol: string; ip_address: string; port: number }[];
  exchange_types: { name: string }[];
}
export interface Node {
  name: string;
  running: boolean;
  told_ms_ago: number | null;
  alarms?: string[];
  alerts?: { kind: string; subject: string; text: string; since: number }[];
  alerts_count?: number;
  draining?: boolean;
  witness?: boolean;
  voter?: boolean;
  alive?: boolean;
  owned_queues?: number;
  held_queues?: number;
  uptime?: number;
  mem_used?: number;
  mem_limit?: number;
  disk_free?: number;
  disk_free_limit?: number;
  fd_used?: number;
  fd_total?: number;
  loop_lag_ms?: number;
  lease_left_ms?: number;
  leased?: boolean;
  wiring_index?: number;
  wiring_leader?: string | null;
  journal_bytes?: number;
  scrub_percent?: number;
  scrub_passes?: number;
  scrub_found?: number;
  version?: string;
  feature_level?: number;
  supported_feature_level?: number;
  io_sync_avg_time?: number;
  os_pid?: string;
  processors?: number;
  db_dir?: string;
  config_files?: string[];
  sockets_used?: number;
  sockets_total?: number;
  cluster_links?: { name: string; up: boolean; stats: { recv_bytes: number; send_bytes: number } }[];
}
export interface Copy {
  node: string;
  records_behind: number;
  bytes_behind: number;
  in_sync: boolean;
}
export interface Consumer {
  consumer_tag: string;
  ack_required: boolean;
  prefetch_count: number;
  active?: boolean;
  channel_details?: { connection_name?: string; number?: number; name?: string; user?: string };
  queue?: { name?: string; vhost?: string };
}
export interface Queue {
  name: string;
  vhost: string;
  state: string;
  type: string;
  durable: boolean;
  auto_delete: boolean;
  exclusive: boolean;
  arguments: Record<string, unknown>;
  owner: string | null;
  epoch: number;
  replicas: string[];
  in_sync: string[];
  online: string[];
  policy: string | null;
  operator_policy: string | null;
  effective_policy_definition: Record<string, unknown>;
  copies?: Copy[];
  consumers?: number;
  messages?: number;
  messages_ready?: number;
  messages_unacknowledged?: number;
  message_bytes?: number;
  messages_details?: Details;
  message_stats?: Counted;
  consumer_details?: Consumer[];
  explain?: Record<string, unknown>;
  paused?: boolean;
  lease?: { name: string; run: string; start: number; end: number; rows: number; until: string };
  stream?: { first_offset: number; next_offset: number; files: number; file_bytes: number; oldest: string | null };
  stored_offsets?: { name: string; offset: number; lag: number }[];
  may?: Kind[];
}
export interface Exchange {
  name: string;
  vhost: string;
  type: string;
  durable: boolean;
  auto_delete: boolean;
  internal: boolean;
  arguments: Record<string, unknown>;
  message_stats?: Counted;
  /** Of one of type x-delayed-message: how many wait. */
  messages_delayed?: number;
  incoming?: { channel_details: Consumer["channel_details"]; stats: Counted }[];
  may?: Kind[];
}
export interface Binding {
  source: string;
  vhost: string;
  destination: string;
  destination_type: "queue" | "exchange";
  routing_key: string;
  properties_key: string;
  arguments: Record<string, unknown>;
}
export interface Connection {
  name: string;
  user: string;
  vhost: string;
  node: string;
  state: string;
  channels: number;
  peer_host: string;
  peer_port: number;
  ssl?: boolean;
  protocol?: string;
  container_id?: string | null;
  connected_at?: number;
  auth_mechanism?: string;
  timeout?: number;
  frame_max?: number;
  channel_max?: number;
  client_properties?: { product?: string; connection_name?: string } & Record<string, unknown>;
  recv_oct_details?: Details;
  send_oct_details?: Details;
}
/** A session of AMQP 1.0 with its links, as RabbitMQ 4 names their fields. */
export interface Session {
  channel_number: number;
  incoming_window: number;
  remote_incoming_window: number;
  link_count: number;
  incoming_links: SessionLink[];
  outgoing_links: SessionLink[];
}
export interface SessionLink {
  handle: number;
  link_name: string;
  target_address?: string | null;
  source_address?: string | null;
  credit: number;
  delivery_count: number;
  unconfirmed_messages?: number;
  unsettled_deliveries?: number;
}
/** A link of AMQP 1.0 whose client is away; times in ms since 1970. */
export interface Bridge {
  vhost: string;
  name: string;
  node: string;
  state: string;
  why: string;
  source?: string;
  destination?: string;
  moved?: number;
  held?: number;
  lost?: number;
}
export interface SuspendedLink {
  name: string;
  container_id: string | null;
  role: string;
  address: string | null;
  level: string;
  unsettled: number;
  since: number | null;
  expires_in_s: number | null;
  node: string | null;
  user: string;
  vhost: string;
}
export interface Channel {
  name: string;
  number: number;
  user: string;
  vhost: string;
  node: string;
  state: string;
  confirm: boolean;
  transactional: boolean;
  prefetch_count: number;
  global_prefetch_count: number;
  consumer_count: number;
  messages_unacknowledged: number;
  messages_unconfirmed: number;
  messages_uncommitted: number;
  acks_uncommitted: number;
  message_stats?: Counted;
  consumer_details?: Consumer[];
  publishes?: { exchange: { name: string; vhost: string }; stats: Counted }[];
}
export interface Page<T> {
  items: T[];
  page: number;
  page_count: number;
  filtered_count: number;
  total_count: number;
}
export interface Policy {
  name: string;
  vhost: string;
  pattern: string;
  "apply-to": string;
  priority: number;
  definition: Record<string, unknown>;
}
export interface Parameter {
  name: string;
  value: unknown;
}
export interface VhostParameter extends Parameter {
  component: string;
  vhost: string;
}
/** Limits by their names. */
export type LimitsOf = Record<string, number>;
export interface Vhost {
  name: string;
  description: string;
  tags: string[];
  default_queue_type: string;
  messages_ready?: number;
  messages_unacknowledged?: number;
  messages?: number;
}
export interface User {
  name: string;
  tags: string[];
  limits: LimitsOf;
}
export interface Permission {
  user: string;
  vhost: string;
  configure: string;
  write: string;
  read: string;
}
export interface TopicPermission {
  user: string;
  vhost: string;
  exchange: string;
  write: string;
  read: string;
}

export interface Pool {
  vhost: string;
  name: string;
  template: string;
  state: "running" | "paused" | "deleting";
  controller: string | null;
  exchange: string;
  groups: number;
  workers: number;
  /** As the controller said last; none of a pool that starts none. */
  workers_by_state: Counted;
  message_stats: Counted;
  consumers: number;
  waiting: number;
  held: number;
  orphans: number;
  delayed: number;
  /** For how long the oldest waiting request waits; null: none waits. */
  oldest_s: number | null;
  dead: number;
  poison: number;
  settings: Record<string, unknown>;
}

/** States of workers, in the order of a life. */
export const WORKER_STATES = ["wanted", "starting", "spare", "ready", "busy", "retiring", "stopping"];

/** Whether the pool has its workers started. */
export const starts = (pool: Pool): boolean => pool.template !== "" && pool.template !== "noop";

export interface PoolGroup {
  key: string;
  state: string;
  queue: string;
  generation: number;
  pinned: boolean;
  /** Of a worker of the key; null: not known. */
  memory_bytes: number | null;
  /** Why workers of the key cannot be started; empty: they can. */
  failed_why: string;
  waiting: number;
  held: number;
  consumers: number;
}

/** A node where workers of a pool are started, or were. Sizes: null is not known. */
export interface PoolPlace {
  place: string;
  state: "ready" | "full" | "alarm" | "suspended" | "other_version" | "away" | "unknown";
  why: string;
  suspended_for_s: number;
  workers: number;
  workers_max: number | null;
  room_bytes: number | null;
  promised_bytes: number | null;
  driver: string | null;
  machine: { used_bytes: number };
}

export interface PoolWorker {
  id: string;
  /** Empty: a spare, which has none yet. */
  keys: string[];
  place: string;
  version: string;
  state: string;
  held: number;
  retired: string;
  revoked: string;
}

/** A request of a pool, where it was found. */
export interface PoolRequest {
  state: "delayed" | "orphan" | "moving" | "waiting" | "held" | "dead" | "poison";
  key: string;
  queue: string;
  seq: number;
  correlation_id: string | null;
  message_id: string | null;
  attempt: number | null;
  worker: string | null;
  held_since_ms: number | null;
  /** 0 to 1, as its worker reported last; null: it has reported nothing. */
  progress: number | null;
  /** Of a waiting one: so many of its key wait before it. */
  ahead: number | null;
  node: string | null;
  reason: string | null;
  lost: unknown;
  due_ms: number | null;
  timestamp_ms: number;
}
export interface PoolRequests {
  items: PoolRequest[];
  next: string | null;
  not_looked_into: string[];
  cancelled?: number;
}
