// Who is signed in, and which page is shown.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Me } from "./api";
import { Refused, get, listen, may, post } from "./api";
import { span } from "./format";
import { link, usePlace } from "./live";
import { Cluster } from "./pages/cluster";
import { Connections } from "./pages/connections";
import { ExchangePage, Exchanges } from "./pages/exchanges";
import { OverviewPage } from "./pages/overview";
import { Policies } from "./pages/policies";
import { QueuePage, Queues } from "./pages/queues";
import { Users } from "./pages/users";
import "./style.css";
import { Empty, Messages } from "./ui";

const TITLES: Record<string, string> = {
  overview: "Overview",
  queues: "Queues",
  exchanges: "Exchanges",
  connections: "Connections",
  cluster: "Cluster",
  policies: "Policies",
  users: "Users",
};

function offered(me: Me): string[] {
  return Object.keys(TITLES).filter((name) => {
    if (name === "users") return may(me, "administrator");
    return name !== "cluster" || may(me, "monitoring");
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
  const at = words.join("/");
  const first = useRef(true);
  useEffect(() => {
    document.title = `${words[2] || TITLES[name] || "Not found"} · clusterbroker`;
    // a new page begins at its top, also for who reads it with the keyboard
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
    scrollTo(0, 0);
  }, [at]);
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
        <nav aria-label="Pages">
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
          This node has been cut off from the cluster for {span(stale * 1000)}. What it shows is what it last knew, and it changes nothing. Any other member answers.
        </p>
      )}
      <main id="main" ref={main} tabIndex={-1}>
        {names.includes(name) ? <Shown me={me} words={words} /> : <Empty title="There is no such page">Choose one above. What your tags do not allow is not offered.</Empty>}
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
    case "connections":
      return <Connections me={me} />;
    case "cluster":
      return <Cluster />;
    case "policies":
      return <Policies me={me} />;
    case "users":
      return <Users me={me} />;
    default:
      return <OverviewPage me={me} />;
  }
}

render(<App />, document.getElementById("app")!);
