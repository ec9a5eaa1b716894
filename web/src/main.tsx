// Who is signed in, and which page is shown.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Me, Right } from "./api";
import { Refused, get, listen, may, post } from "./api";
import { span } from "./format";
import { link, usePlace } from "./live";
import { Channels } from "./pages/channels";
import { Cluster } from "./pages/cluster";
import { ChannelPage, ConnectionPage } from "./pages/connection";
import { Connections } from "./pages/connections";
import { Definitions } from "./pages/definitions";
import { DelayedExchanges, DelayedPage } from "./pages/delayed";
import { ExchangePage, Exchanges } from "./pages/exchanges";
import { NodePage } from "./pages/node";
import { OverviewPage } from "./pages/overview";
import { Parameters } from "./pages/parameters";
import { Policies } from "./pages/policies";
import { PoolPage, Pools } from "./pages/pools";
import { QueuePage, Queues } from "./pages/queues";
import { Users } from "./pages/users";
import { Vhosts } from "./pages/vhosts";
import "./style.css";
import { Empty, Messages } from "./ui";

const TITLES: Record<string, string> = {
  overview: "Overview",
  queues: "Queues",
  exchanges: "Exchanges",
  delayed: "Delayed",
  pools: "Pools",
  connections: "Connections",
  channels: "Channels",
  cluster: "Cluster",
  vhosts: "Vhosts",
  policies: "Policies",
  parameters: "Parameters",
  users: "Users",
  definitions: "Definitions",
};
/** The right that a page needs; the others are for all who may sign in. */
const NEEDED: Partial<Record<string, Right>> = { cluster: "monitoring", parameters: "policymaker", users: "administrator", definitions: "administrator" };

function offered(me: Me): string[] {
  return Object.keys(TITLES).filter((name) => {
    const right = NEEDED[name];
    return right === undefined || may(me, right);
  });
}

function App() {
  const [me, setMe] = useState<Me | null | undefined>(undefined);
  const [stale, setStale] = useState<number | null>(null);
  useEffect(() => {
    listen(() => setMe(null), setStale);
    get<Me>("whoami").then(setMe, () => setMe(null));
  }, []);
  if (me === undefined) return null;
  return (
    <>
      {me ? <Signed me={me} stale={stale} out={() => setMe(null)} /> : <SignIn then={setMe} />}
      <Messages />
    </>
  );
}

function SignIn(props: { then: (me: Me) => void }) {
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    document.title = "Sign in · clusterbroker";
  }, []);
  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget as HTMLFormElement);
    setBusy(true);
    try {
      props.then(await post<Me>("login", { username: data.get("username"), password: data.get("password") }));
    } catch (refused) {
      const wrong = refused instanceof Refused && refused.reason === "Login failed";
      setError(wrong ? "User or password is wrong. The user guest signs in from the node's own machine only." : (refused as Error).message);
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <form onSubmit={send} aria-label="Sign in">
        <h1>
          <Mark /> clusterbroker
        </h1>
        <div class="field">
          <label for="username">User</label>
          <input id="username" name="username" autocomplete="username" required autofocus spellcheck={false} />
        </div>
        <div class="field">
          <label for="password">Password</label>
          <input id="password" name="password" type="password" autocomplete="current-password" required />
        </div>
        <p class="note bad" role="alert">
          {error}
        </p>
        <button type="submit" class="main" disabled={busy}>
          Sign in
        </button>
      </form>
    </main>
  );
}

function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <path d="M16 9 8 22h16z" />
      <circle cx="16" cy="8" r="5" />
      <circle cx="7" cy="23" r="5" />
      <circle cx="25" cy="23" r="5" />
    </svg>
  );
}

function Signed({ me, stale, out }: { me: Me; stale: number | null; out: () => void }) {
  const { words } = usePlace();
  const names = offered(me);
  const name = words[0] ?? "overview";
  const main = useRef<HTMLElement>(null);
  const nav = useRef<HTMLElement>(null);
  const at = words.join("/");
  const first = useRef(true);
  const object = words[name === "connections" || name === "cluster" ? 1 : 2];
  useEffect(() => {
    document.title = `${object || TITLES[name] || "Not found"} · clusterbroker`;
    // a new page begins at its top, also for who reads it with the keyboard
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
    scrollTo(0, 0);
  }, [at]);
  useEffect(() => {
    // on a narrow screen the row of pages is longer than the screen
    const row = nav.current;
    const here = row?.querySelector<HTMLElement>("[aria-current]");
    if (!row || !here) return;
    const [all, one] = [row.getBoundingClientRect(), here.getBoundingClientRect()];
    row.scrollLeft += one.left + one.width / 2 - (all.left + all.width / 2);
  }, [name]);
  const leave = async () => {
    await post("logout", {}).catch(() => null);
    out();
  };
  const skip = (event: MouseEvent) => {
    event.preventDefault();
    main.current?.focus();
  };
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={skip}>
        Skip to content
      </a>
      <header class="top">
        <a class="brand" href={link("overview")}>
          <Mark /> clusterbroker
        </a>
        <nav aria-label="Pages" ref={nav}>
          {names.map((one) => (
            <a key={one} href={link(one)} aria-current={one === name ? "page" : undefined}>
              {TITLES[one]}
            </a>
          ))}
        </nav>
        <div class="who">
          <span title={`Tags: ${me.tags.join(", ")}`}>{me.name}</span>
          <button type="button" class="quiet" onClick={leave}>
            Sign out
          </button>
        </div>
      </header>
      {stale !== null && (
        <p class="stale" role="alert">
          This node has been cut off from the cluster for {span(stale * 1000)}. The page shows the last known state, and changes are refused. Ask another member, if one is up.
        </p>
      )}
      <main id="main" ref={main} tabIndex={-1}>
        {names.includes(name) ? <Shown me={me} words={words} /> : <Empty title="No such page">Choose one above. Pages outside of your tags are not offered.</Empty>}
      </main>
    </div>
  );
}

function Shown({ me, words }: { me: Me; words: string[] }) {
  const [name = "overview", vhost, object] = words;
  switch (name) {
    case "queues":
      return vhost !== undefined && object !== undefined ? <QueuePage key={words.join("/")} me={me} vhost={vhost} name={object} /> : <Queues me={me} />;
    case "exchanges":
      return vhost !== undefined && object !== undefined ? <ExchangePage key={words.join("/")} me={me} vhost={vhost} name={object === "amq.default" ? "" : object} /> : <Exchanges me={me} />;
    case "delayed":
      return vhost !== undefined && object !== undefined ? <DelayedPage key={words.join("/")} me={me} vhost={vhost} name={object} /> : <DelayedExchanges />;
    case "pools":
      return vhost !== undefined && object !== undefined ? <PoolPage key={words.join("/")} me={me} vhost={vhost} name={object} /> : <Pools />;
    case "connections": {
      const [, connection, channel] = words;
      if (connection === undefined) return <Connections me={me} />;
      return channel === undefined ? <ConnectionPage key={connection} me={me} name={connection} /> : <ChannelPage key={words.join("/")} connection={connection} number={channel} />;
    }
    case "channels":
      return <Channels me={me} />;
    case "cluster":
      return vhost === undefined ? <Cluster /> : <NodePage key={vhost} name={vhost} />;
    case "vhosts":
      return <Vhosts me={me} />;
    case "policies":
      return <Policies me={me} />;
    case "parameters":
      return <Parameters me={me} />;
    case "users":
      return <Users me={me} />;
    case "definitions":
      return <Definitions />;
    default:
      return <OverviewPage me={me} />;
  }
}

render(<App />, document.getElementById("app")!);
