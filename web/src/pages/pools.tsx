import type { Me, Page, Pool, PoolGroup, PoolPlace, PoolWorker } from "../api";
import { WORKER_STATES, count, del, may, path, post, rate, starts } from "../api";
import type { Line } from "../chart";
import { Chart } from "../chart";
import { bytes, number, perSecond, plural, span } from "../format";
import { link, useLive, usePlace } from "../live";
import { KeyDeeds, StartKey, StopWorker } from "../pool_deeds";
import { PoolHistory } from "../pool_history";
import type { PoolEvent } from "../pool_lives";
import { PoolPlaces } from "../pool_places";
import { Poison } from "../pool_poison";
import { FindRequest } from "../pool_requests";
import type { Glance } from "../pool_strip";
import { PoolStrip } from "../pool_strip";
import { useRange } from "../range";
import { Empty, Facts, Filter, Head, Pager, Panel, Pill, Sure, Table, Tile, Waiting, attempt } from "../ui";
import { VhostChoice, listed, useVhost } from "../vhost_choice";
import { useVhosts } from "../vhosts";

const SIZE = 50;
/** A pool with more keys than this is looked at more seldom: the node looks at each of them. */
const MANY = 2_000;
const SELDOM_MS = 30_000;
const REQUESTS: Line[] = [
  { label: "Requests", field: "requests", colour: 1 },
  { label: "Died", field: "dead", colour: 2 },
];
const WORKERS: Line[] = [
  { label: "Busy", field: "busy", colour: 1 },
  { label: "Starting", field: "starting", colour: 2 },
  { label: "Ready", field: "ready", colour: 3 },
];

/** Worker pools: what waits in each. */
export function Pools() {
  const { query } = usePlace();
  const name = query.get("name") ?? "";
  const page = Number(query.get("page") ?? 1);
  const vhosts = useVhosts();
  const vhost = useVhost(vhosts);
  const asked = new URLSearchParams({ page: String(page), page_size: String(SIZE), name });
  const live = useLive<Page<Pool>>(`${listed("pools", vhost)}?${asked}`);
  const found = live.value;
  return (
    <>
      <div class="title">
        <h1>Pools</h1>
        <Filter label="Filter by name" value={name} />
        <VhostChoice vhosts={vhosts} vhost={vhost} />
      </div>
      <Waiting live={live} />
      {found && (
        <Panel>
          {found.items.length === 0 ? (
            <Empty title={found.total_count ? `No pool has “${name}” in its name` : "No worker pools"}>
              {found.total_count ? "Change the filter, or clear it to see all." : <>A pool hands requests to workers by key. Declare one: <code>clusterbroker pools declare NAME</code></>}
            </Empty>
          ) : (
            <Table
              label="Pools"
              items={found.items}
              id={(pool) => `${pool.vhost} ${pool.name}`}
              columns={[
                { title: "Vhost", cell: (pool) => pool.vhost },
                {
                  title: "Name",
                  cell: (pool) => (
                    <a class="name" href={link("pools", pool.vhost, pool.name)}>
                      {pool.name}
                    </a>
                  ),
                },
                { title: "State", cell: poolState },
                { title: "Requests", number: true, cell: (pool) => perSecond(rate(pool.message_stats, "requests")) },
                { title: "Waiting", number: true, cell: (pool) => number(pool.waiting + pool.orphans) },
                { title: "Oldest", number: true, cell: oldest },
                { title: "Held", number: true, wide: true, cell: (pool) => number(pool.held) },
                { title: "Keys", number: true, wide: true, cell: (pool) => number(pool.groups) },
                { title: "Workers", cell: (pool) => (starts(pool) ? byState(pool) : plural(pool.consumers, "consumer")) },
                { title: "Poison", number: true, wide: true, cell: (pool) => number(pool.poison) },
                { title: "Controller", wide: true, cell: (pool) => pool.controller ?? "none" },
              ]}
            />
          )}
          <Pager page={page} pages={found.page_count} found={found.filtered_count} total={found.total_count} what="pools" />
        </Panel>
      )}
    </>
  );
}

const poolState = (pool: Pool) => <Pill kind={pool.state === "running" ? "good" : "warn"}>{pool.state}</Pill>;

const oldest = (pool: Pool) => (pool.oldest_s === null ? "–" : span(1000 * pool.oldest_s));

/** Workers that the pool has started. */
function byState(pool: Pool): string {
  const found = WORKER_STATES.filter((state) => count(pool.workers_by_state, state));
  return found.map((state) => `${number(count(pool.workers_by_state, state))} ${state}`).join(", ") || "none";
}

function shown(setting: string, value: unknown): string {
  if (typeof value === "object" && value !== null) return Object.entries(value).map(([name, one]) => `${name}: ${one}`).join(", ") || "none";
  return value === "" ? (setting === "keys" ? "any" : "none") : String(value);
}

const KINDS: Record<string, "good" | "warn" | "bad" | "plain"> = {
  ready: "good", busy: "good", spare: "good", waiting: "warn", failed: "bad", stopping: "warn", draining: "warn",
};

/** One pool: its keys, its workers, its settings, and what can be done to it. */
export function PoolPage({ me, vhost, name }: { me: Me; vhost: string; name: string }) {
  const at = `pools/${path(vhost, name)}`;
  const { curves, choice, range } = useRange(86_400);
  const live = useLive<Pool>(`${at}?${curves}`);
  const { query } = usePlace();
  const page = Number(query.get("page") ?? 1);
  const key = query.get("name") ?? "";
  const groups = useLive<Page<PoolGroup>>(`${at}/groups?${new URLSearchParams({ page: String(page), page_size: String(SIZE), name: key })}`);
  const workers = useLive<Page<PoolWorker>>(`${at}/workers?${new URLSearchParams({ page: "1", page_size: "500" })}`);
  const places = useLive<PoolPlace[]>(may(me, "monitoring") ? `${at}/places` : "");
  const pool = live.value;
  const glance = useLive<Glance>(`${at}/keys`, pool && pool.groups > MANY ? SELDOM_MS : undefined);
  const history = useLive<PoolEvent[]>(pool && starts(pool) ? `${at}/history` : "");
  const found = groups.value;
  const paused = pool?.state === "paused";
  const commands = may(me, "administrator");
  const resume = async () => {
    await attempt(() => post(`${at}/resume`, {}), `${name} goes on.`);
    live.again();
  };
  const again = () => {
    live.again();
    groups.again();
    workers.again();
    glance.again();
    history.again();
  };
  return (
    <>
      <Head kind="pool" list="pools" vhost={vhost} name={name} live={live} pill={pool && poolState(pool)}>
        {choice}
        {pool && commands && (
          <>
            {paused ? (
              <button type="button" onClick={resume}>
                Resume
              </button>
            ) : (
              <Sure
                button="Pause"
                label={`Pause pool ${name}`}
                question={`Pause pool ${name}?`}
                detail="Workers that run go on; none is started, and requests of other keys wait until their time is over."
                deed={() => post(`${at}/pause`, {})}
                done={`${name} is paused: nothing begins in it.`}
                then={live.again}
              />
            )}
            <Sure
              button="Delete"
              label={`Delete pool ${name}`}
              question={`Delete pool ${name}?`}
              detail="Whoever waits hears pool_deleted; then its queues and exchanges go."
              deed={() => del(`${at}?force=true`)}
              done={`${name} is being deleted.`}
              then={live.again}
            />
          </>
        )}
      </Head>
      {pool && (
        <>
          <ul class="tiles" aria-label="Requests and workers">
            <Tile name="Requests" value={perSecond(rate(pool.message_stats, "requests"))} sub={`${number(count(pool.message_stats, "requests"))} in total`} />
            <Tile name="Waiting" value={number(pool.waiting + pool.orphans)} sub={pool.orphans ? `${number(pool.orphans)} of them without a queue yet` : ""} />
            <Tile name="Oldest" value={oldest(pool)} sub={pool.oldest_s === null ? "none waits" : "waits for a worker"} />
            <Tile name="Held" value={number(pool.held)} sub={`by ${plural(pool.consumers, "consumer")}`} />
            <Tile name="Workers" value={number(starts(pool) ? pool.workers : pool.consumers)} sub={starts(pool) ? byState(pool) : "come by themselves"} />
            <Tile name="Keys" value={number(pool.groups)} sub={pool.poison ? `${number(pool.poison)} poison` : ""} />
          </ul>
          <div class="columns">
            <Panel>
              <Chart title="Requests" of={pool.message_stats} lines={REQUESTS} rates range={range} />
            </Panel>
            {starts(pool) && (
              <Panel>
                <Chart title="Workers" of={pool.workers_by_state} lines={WORKERS} range={range} />
              </Panel>
            )}
          </div>
        </>
      )}
      <PoolStrip vhost={vhost} live={glance} />
      {pool && starts(pool) && <PoolHistory live={history} />}
      {!!places.value?.length && <PoolPlaces places={places.value} />}
      {pool && (
        <Panel title="Details">
          <Facts
            many
            of={[
              ["Without a queue yet", number(pool.orphans)],
              ["Dead, to be answered", number(pool.dead)],
              ["Put off", <a href={link("delayed", vhost, `${pool.exchange}-delayed`)}>{number(pool.delayed)}</a>],
              ["Poison", <a href={link("queues", vhost, `${pool.exchange}-poison`)}>{number(pool.poison)}</a>],
              ["Controller", pool.controller ?? "none: new keys wait"],
              ["Publish to", <code>{pool.exchange}</code>],
            ]}
          />
        </Panel>
      )}
      {pool && <FindRequest vhost={vhost} pool={name} then={live.again} />}
      {found && (
        <Panel title="Keys" side={<Filter label="Filter by key" value={key} />}>
          {found.items.length === 0 ? (
            <Empty title={found.total_count ? `No key has “${key}” in it` : "No keys"}>{found.total_count ? "Change the filter, or clear it." : "The first request of a key makes its queue, and the first consumer does."}</Empty>
          ) : (
            <Table
              label="Keys"
              items={found.items}
              id={(group) => group.key}
              columns={[
                {
                  title: "Key",
                  cell: (group) => (
                    <a class="name" href={link("queues", vhost, group.queue)}>
                      {group.key === "" ? "(empty)" : group.key}
                    </a>
                  ),
                },
                {
                  title: "State",
                  cell: (group) => (
                    <>
                      <Pill kind={KINDS[group.state] ?? "plain"}>{group.state}</Pill> {group.failed_why}
                    </>
                  ),
                },
                { title: "Waiting", number: true, cell: (group) => number(group.waiting) },
                { title: "Held", number: true, cell: (group) => number(group.held) },
                { title: "Consumers", number: true, cell: (group) => number(group.consumers) },
                { title: "Memory", number: true, wide: true, cell: (group) => (group.memory_bytes === null ? "–" : bytes(group.memory_bytes)) },
                { title: "Generation", number: true, wide: true, cell: (group) => number(group.generation) },
                ...(commands ? [{ title: "", cell: (group: PoolGroup) => <KeyDeeds at={at} group={group} then={again} /> }] : []),
              ]}
            />
          )}
          <Pager page={page} pages={found.page_count} found={found.filtered_count} total={found.total_count} what="keys" />
          {commands && <StartKey at={at} then={again} />}
        </Panel>
      )}
      {!!workers.value?.items.length && (
        <Panel title="Workers that the pool has started">
          <Table
            label="Workers"
            items={workers.value.items}
            id={(worker) => worker.id}
            columns={[
              { title: "Worker", cell: (worker) => <b class="name">{worker.id}</b> },
              { title: "Key", cell: (worker) => worker.keys.join(", ") || "(spare)" },
              { title: "Place", cell: (worker) => worker.place },
              {
                title: "State",
                cell: (worker) => (
                  <>
                    <Pill kind={KINDS[worker.state] ?? "plain"}>{worker.state}</Pill> {worker.revoked || worker.retired}
                  </>
                ),
              },
              { title: "Held", number: true, cell: (worker) => number(worker.held) },
              { title: "Version", wide: true, cell: (worker) => <code>{worker.version}</code> },
              ...(commands ? [{ title: "", cell: (worker: PoolWorker) => <StopWorker at={at} worker={worker} then={again} /> }] : []),
            ]}
          />
        </Panel>
      )}
      {pool && <Poison me={me} pool={pool} then={live.again} />}
      {pool && (
        <Panel title="Settings">
          <Facts many of={[["template", pool.template], ...Object.entries(pool.settings).map(([setting, value]): [string, string] => [setting, shown(setting, value)])]} />
        </Panel>
      )}
    </>
  );
}
