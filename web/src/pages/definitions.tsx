import { useState } from "preact/hooks";
import { Refused, path, post } from "../api";
import { number, plural } from "../format";
import { Empty, Form, Panel, Sure, Table, attempt, json } from "../ui";
import { useVhosts } from "../vhosts";

/** What the node says of a section: how many of its entries would be new, how many would change what is there. */
interface Counts {
  new: number;
  changed: number;
  same: number;
  /** The first of those that would be new or changed. */
  names: { new: string[]; changed: string[] };
}

/** What is told beside the sections: what was adapted, and why nothing would be done. */
interface Notes {
  warnings: string[];
  /** What this broker does not have. */
  unsupported: string[];
  obstacles: string[];
}

/** A document that was looked at, where it is to go ("": the cluster), and what it would do there; or why it would not. */
interface Looked {
  text: string;
  into: string;
  skip: boolean;
  notes: Notes;
  trial: Record<string, Counts>;
  passed: string[];
}

const at = (vhost: string) => (vhost ? `definitions/${path(vhost)}` : "definitions");
const place = (vhost: string) => (vhost ? `vhost ${vhost}` : "the cluster");

export function Definitions() {
  const vhosts = useVhosts();
  const [looked, setLooked] = useState<Looked | null>(null);
  const [answer, setAnswer] = useState<{ text: string; bad: boolean } | null>(null);
  const places: [string, string][] = [["", "the whole cluster"], ...vhosts.map((vhost): [string, string] => [vhost, `vhost ${vhost}, without its users`])];
  const look = (text: string, into: string, skip: boolean) =>
    attempt(async () => {
      setLooked(null);
      setAnswer(null);
      const given = json(text, '{"queues": []}');
      try {
        const { warnings, unsupported, obstacles, ...trial } = await post<Notes & Record<string, unknown>>(`${at(into)}?dry_run=true${skip ? "&skip_unsupported=true" : ""}`, text);
        setLooked({ text, into, skip, notes: { warnings, unsupported, obstacles }, trial: trial as Record<string, Counts>, passed: sections(given).filter((name) => !(name in trial)) });
      } catch (error) {
        if (!(error instanceof Refused) || error.status !== 400) throw error;
        setLooked({ text, into, skip, notes: { warnings: [], unsupported: [], obstacles: [error.reason] }, trial: {}, passed: [] });
      }
    }, "");
  const bring = async ({ text, into, skip }: Looked) => {
    try {
      await post(`${at(into)}${skip ? "?skip_unsupported=true" : ""}`, text);
      setAnswer({ text: "The node has taken all of it.", bad: false });
    } catch (error) {
      setAnswer({ text: `The node's answer: ${error instanceof Error ? error.message : String(error)}`, bad: true });
      throw error;
    }
  };
  return (
    <>
      <div class="title">
        <h1>Definitions</h1>
        <span class="sub">all that is declared and set, as one document; no messages</span>
      </div>
      <Panel title="Download">
        <Form
          label="Download definitions"
          button="Download"
          keep
          fields={[{ name: "of", label: "Of", options: places, hint: "that of the cluster holds the hashes of passwords: keep it like them" }]}
          submit={(values, attempt) => attempt(() => download(values["of"]!), "")}
        />
      </Panel>
      <Panel title="Upload">
        <Form
          label="Upload definitions"
          button="Preview"
          keep
          fields={[
            { name: "file", label: "File", kind: "file", required: true, hint: "a download, or what RabbitMQ exports" },
            { name: "into", label: "Into", options: places, hint: "nothing is changed before you have seen what would be" },
            { name: "skip", label: "Leave out what is unsupported", kind: "check", hint: "what RabbitMQ has and this broker does not" },
          ]}
          submit={(values) => look(values["file"]!, values["into"]!, values["skip"] === "yes")}
        />
        <div aria-live="polite">
          {looked && <Preview looked={looked} deed={() => bring(looked)} then={() => setLooked(null)} />}
          {answer && <p class={answer.bad ? "note bad" : "note"}>{answer.text}</p>}
        </div>
      </Panel>
    </>
  );
}

/** The browser's own download: numbers stay as the node writes them. */
async function download(vhost: string): Promise<void> {
  const anchor = document.createElement("a");
  anchor.href = `/api/${at(vhost)}`;
  anchor.download = "definitions.json";
  anchor.click();
}

/** Names of the sections that a document has something in. */
function sections(document: unknown): string[] {
  if (typeof document !== "object" || document === null) return [];
  return Object.entries(document).flatMap(([name, entries]) => (Array.isArray(entries) && entries.length > 0 ? [name] : []));
}

const spoken = (section: string) => section.replaceAll("_", " ");

/** What would change comes first: it replaces something. */
function Which({ counts }: { counts: Counts }) {
  const listed = (what: "changed" | "new") => {
    const names = counts.names[what];
    return names.length > 0 && <div key={what}>{`${what}: ${names.join(", ")}${names.length < counts[what] ? ", …" : ""}`}</div>;
  };
  return <small>{[listed("changed"), listed("new")]}</small>;
}

function Lines({ title, kind, lines }: { title: string; kind: string; lines: string[] }) {
  if (lines.length === 0) return null;
  if (lines.length === 1) return <p class={kind}>{`${title}: ${lines[0]}`}</p>;
  return (
    <div class={kind}>
      {`${title}:`}
      <ul>
        {lines.map((line) => (
          <li key={line}>{line}</li>
        ))}
      </ul>
    </div>
  );
}

function Preview({ looked, deed, then }: { looked: Looked; deed: () => Promise<unknown>; then: () => void }) {
  const found = Object.entries(looked.trial);
  const sum = (of: (counts: Counts) => number) => found.reduce((total, [, counts]) => total + of(counts), 0);
  const { warnings, unsupported, obstacles } = looked.notes;
  const told = <Lines title="Adapted" kind="note" lines={warnings} />;
  if (unsupported.length + obstacles.length > 0)
    return (
      <>
        <Lines title="Unsupported here" kind="note bad" lines={unsupported} />
        <Lines title="The node would refuse it" kind="note bad" lines={obstacles} />
        {told}
      </>
    );
  if (!found.length && !looked.passed.length) return <Empty title="Nothing is defined in this file">It has none of the sections of a download.</Empty>;
  return (
    <>
      {told}
      <Table
        label="What an import would do"
        items={found}
        id={([section]) => section}
        columns={[
          { title: "Section", cell: ([section]) => <b>{spoken(section)}</b> },
          { title: "New", number: true, cell: ([, counts]) => number(counts.new) },
          { title: "Changed", number: true, cell: ([, counts]) => number(counts.changed) },
          { title: "As they are", number: true, cell: ([, counts]) => number(counts.same) },
          { title: "Which", wide: true, cell: ([, counts]) => <Which counts={counts} /> },
        ]}
      />
      {looked.passed.length > 0 && <p class="note">{`Left out, for no single vhost has them: ${looked.passed.map(spoken).join(", ")}.`}</p>}
      <div class="actions">
        <Sure
          button="Import"
          question={`Import into ${place(looked.into)}?`}
          detail={`${plural(sum((counts) => counts.new), "thing")} would be new, ${number(sum((counts) => counts.changed))} changed. What the file does not name stays. Nothing takes an import back.`}
          deed={deed}
          done="The definitions are imported."
          then={then}
        />
      </div>
    </>
  );
}
