import type { Exchange, Me, Page, Pool, PoolGroup, PoolPlace, PoolWorker } from "../api";
import { del, may, path, post } from "../api";
import { number, span } from "../format";
import { link, useLive, usePlace } from "../live";
import { KeyDeeds, StartKey, StopWorker } from "../pool_deeds";
import { PoolPlaces } from "../pool_places";
import { Poison } from "../pool_poison";
import { FindRequest } from "../pool_requests";
import { Empty, Facts, Filter, Head, Pager, Panel, Pill, Sure, Table, Waiting, attempt } from "../ui";
import { VhostChoice, listed, useVhost } from "../vhost_choice";
import { useVhosts } from "../vhosts";

const SIZE = 50;

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
                { title: "Keys", number: true, cell: (pool) => number(pool.groups) },
                { title: "Waiting", number: true, cell: (pool) => number(pool.waiting + pool.orphans) },
                { title: "Held", number: true, cell: (pool) => number(pool.held) },
                { title: "Consumers", number: true, cell: (pool) => number(pool.consumers) },
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

const KINDS: Record<string, "good" | "warn" | "plain"> = {
  ready: "good", busy: "good", spare: "good", waiting: "warn", failed: "warn", stopping: "warn",
};

/** One pool: its keys, its workers, its settings, and what can be done to it. */
export function PoolPage({ me, vhost, name }: { me: Me; vhost: string; name: string }) {
  const at = `pools/${path(vhost, name)}`;
  const live = useLive<Pool>(at);
  const { query } = usePlace();
  const page = Number(query.get("page") ?? 1);
  const key = query.get("name") ?? "";
  const groups = useLive<Page<PoolGroup>>(`${at}/groups?${new URLSearchParams({ page: String(page), page_size: String(SIZE), name: key })}`);
  const workers = useLive<Page<PoolWorker>>(`${at}/workers?${new URLSearchParams({ page: "1", page_size: "500" })}`);
  const places = useLive<PoolPlace[]>(may(me, "monitoring") ? `${at}/places` : "");
  const pool = live.value;
  const delayed = useLive<Exchange>(pool ? `exchanges/${path(vhost, `${pool.exchange}-delayed`)}` : "");
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
  };
  return (
    <>
      <Head kind="pool" list="pools" vhost={vhost} name={name} live={live} pill={pool && poolState(pool)}>
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
        <div class="columns">
          <Panel title="Requests">
            <Facts
              of={[
                ["Waiting for a worker", number(pool.waiting)],
                ["The oldest waits for", pool.oldest_s === null ? "none waits" : span(1000 * pool.oldest_s)],
                ["Held by workers", number(pool.held)],
                ["Without a queue yet", number(pool.orphans)],
                ["Dead, to be answered", number(pool.dead)],
                ["Put off", <a href={link("delayed", vhost, `${pool.exchange}-delayed`)}>{number(delayed.value?.messages_delayed)}</a>],
                ["Poison", <a href={link("queues", vhost, `${pool.exchange}-poison`)}>{number(pool.poison)}</a>],
                ["Consumers", number(pool.consumers)],
                ["Controller", pool.controller ?? "none: new keys wait"],
                ["Publish to", <code>{pool.exchange}</code>],
              ]}
            />
          </Panel>
          <Panel title="Settings">
            <Facts of={[["template", pool.template], ...Object.entries(pool.settings).map(([setting, value]): [string, string] => [setting, value === "" ? "any" : String(value)])]} />
          </Panel>
        </div>
      )}
      {!!places.value?.length && <PoolPlaces places={places.value} />}
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
    </>
  );
}
