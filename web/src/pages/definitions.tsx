import { useState } from "preact/hooks";
import { get, path, post } from "../api";
import type { Compared } from "../definitions";
import { compared } from "../definitions";
import { number, plural } from "../format";
import { Empty, Form, Panel, Sure, Table, attempt, json } from "../ui";
import { useVhosts } from "../vhosts";

const NAMES_SHOWN = 20;

/** A document that was looked at, where it is to go ("": the cluster), and what it would do there. */
interface Looked {
  text: string;
  into: string;
  sections: Compared[];
}

const at = (vhost: string) => (vhost ? `definitions/${path(vhost)}` : "definitions");
const place = (vhost: string) => (vhost ? `vhost ${vhost}` : "the cluster");

export function Definitions() {
  const vhosts = useVhosts();
  const [looked, setLooked] = useState<Looked | null>(null);
  const [answer, setAnswer] = useState<{ text: string; bad: boolean } | null>(null);
  const places: [string, string][] = [["", "the whole cluster"], ...vhosts.map((vhost): [string, string] => [vhost, `vhost ${vhost}, without its users`])];
  const look = (text: string, into: string) =>
    attempt(async () => {
      setLooked(null);
      setAnswer(null);
      const document = json(text, '{"queues": []}');
      setLooked({ text, into, sections: compared(document, await get(at(into)), into || undefined) });
    }, "");
  const bring = async ({ text, into }: Looked) => {
    try {
      await post(at(into), text);
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
          submit={(values) => attempt(() => download(values["of"]!), "")}
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
          ]}
          submit={(values) => look(values["file"]!, values["into"]!)}
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

function Preview({ looked, deed, then }: { looked: Looked; deed: () => Promise<unknown>; then: () => void }) {
  const { sections } = looked;
  const sum = (of: (section: Compared) => number) => sections.reduce((total, section) => total + of(section), 0);
  const fresh = sum((section) => section.fresh.length);
  const changed = sum((section) => section.changed.length);
  const passed = sum((section) => section.passed);
  const refused = sections.filter((section) => section.fixed && section.changed.length);
  if (!sections.length) return <Empty title="Nothing is defined in this file">It has none of the sections of a download.</Empty>;
  return (
    <>
      <Table
        label="What an import would do"
        items={sections}
        id={(section) => section.section}
        columns={[
          { title: "Section", cell: (section) => <b>{section.section}</b> },
          { title: "New", cell: (section) => <Names of={section.fresh} /> },
          { title: "Changed", cell: (section) => <Names of={section.changed} /> },
          { title: "As they are", number: true, cell: (section) => number(section.same) },
        ]}
      />
      {refused.length > 0 && <p class="note bad">{`There are ${refused.map((section) => section.section).join(" and ")} of the same name with other settings, which nothing changes: the node will refuse.`}</p>}
      {passed > 0 && <p class="note">{`Left out, for no single vhost has them: ${sections.filter((section) => section.passed).map((section) => section.section).join(", ")}.`}</p>}
      <div class="actions">
        <Sure
          button="Import"
          question={`Import into ${place(looked.into)}?`}
          detail={`${plural(fresh, "thing")} would be new, ${number(changed)} changed. What the file does not name stays. Nothing takes an import back.`}
          deed={deed}
          done="The definitions are imported."
          then={then}
        />
      </div>
    </>
  );
}

function Names({ of }: { of: string[] }) {
  const more = of.length - NAMES_SHOWN;
  return (
    <>
      {number(of.length)}
      {of.length > 0 && <small class="under">{`${of.slice(0, NAMES_SHOWN).join("; ")}${more > 0 ? ` and ${number(more)} more` : ""}`}</small>}
    </>
  );
}
