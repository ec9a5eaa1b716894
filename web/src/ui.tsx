// The parts that all pages are made of.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { number } from "./format";
import type { Live } from "./live";
import { link, setQuery } from "./live";

type Children = { children?: ComponentChildren };

export function Panel(props: Children & { title?: string; side?: ComponentChildren; class?: string }) {
  return (
    <section class={`panel ${props.class ?? ""}`}>
      {props.title && (
        <header>
          <h2>{props.title}</h2>
          {props.side}
        </header>
      )}
      {props.children}
    </section>
  );
}

export function Empty(props: Children & { title: string }) {
  return (
    <div class="empty">
      <strong>{props.title}</strong>
      <p>{props.children}</p>
    </div>
  );
}

/** A figure of a row of them. */
export function Tile(props: { name: string; value: string; sub?: string; href?: string }) {
  return (
    <li class="tile">
      <span class="tile-name">{props.href ? <a href={props.href}>{props.name}</a> : props.name}</span>
      <strong>{props.value}</strong>
      <small>{props.sub}</small>
    </li>
  );
}

/** What is to be said before, or instead of, the document. */
export function Waiting({ live }: { live: Live<unknown> }) {
  if (live.error) return <p class={live.value === undefined ? "note bad" : "note"}>{live.value === undefined ? live.error : `Not up to date: ${live.error}`}</p>;
  return live.value === undefined ? <p class="note">Loading…</p> : null;
}

/** Above the page of one thing: in which list and vhost it is (`above`: and inside of what), what it is called, and what can
    be done to it. */
export function Head(
  props: Children & { kind: string; list: string; vhost: string | undefined; above?: ComponentChildren; name: string; live: Live<unknown>; pill?: ComponentChildren },
) {
  return (
    <>
      <nav class="crumbs" aria-label="Where this is">
        <a href={link(props.list)}>{props.list[0]!.toUpperCase() + props.list.slice(1)}</a>
        {props.above && <> / {props.above}</>}
        {props.vhost !== undefined && (
          <>
            {" "}
            in vhost <code>{props.vhost}</code>
          </>
        )}
      </nav>
      <div class="title">
        <h1>{props.name}</h1>
        {props.pill}
        {props.children && <span class="push">{props.children}</span>}
      </div>
      {props.live.status === 404 ? (
        <Empty title={`There is no such ${props.kind} (any more)`}>
          <a href={link(props.list)}>All {props.list}</a>
        </Empty>
      ) : (
        <Waiting live={props.live} />
      )}
    </>
  );
}

export function Pill(props: Children & { kind?: "good" | "bad" | "warn" | "plain" }) {
  return <span class={`pill ${props.kind ?? "plain"}`}>{props.children}</span>;
}

export interface Column<T> {
  title: string;
  cell: (item: T) => ComponentChildren;
  /** Dotted path that the server sorts by; without it the column is not for sorting. */
  sort?: string;
  number?: boolean;
  /** Left out on narrow screens. */
  wide?: boolean;
}

export function Table<T>(props: {
  label: string;
  columns: Column<T>[];
  items: T[];
  id: (item: T) => string;
  sort?: string;
  reverse?: boolean;
}) {
  const sorted = (column: Column<T>) => column.sort !== undefined && column.sort === props.sort;
  const sortBy = (column: Column<T>) =>
    setQuery({ sort: column.sort ?? "", reverse: sorted(column) ? (props.reverse ? "" : "1") : column.number ? "1" : "", page: "" });
  return (
    <div class="scroll">
      <table aria-label={props.label}>
        <thead>
          <tr>
            {props.columns.map((column) => (
              <th
                key={column.title}
                scope="col"
                class={`${column.number ? "num" : ""} ${column.wide ? "wide" : ""}`}
                aria-sort={sorted(column) ? (props.reverse ? "descending" : "ascending") : undefined}
              >
                {column.sort ? (
                  <button type="button" class="sort" onClick={() => sortBy(column)}>
                    {column.title}
                    <span aria-hidden="true">{sorted(column) ? (props.reverse ? " ↓" : " ↑") : ""}</span>
                  </button>
                ) : (
                  column.title || <span class="hidden">Actions</span>
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.items.map((item) => (
            <tr key={props.id(item)}>
              {props.columns.map((column) => (
                <td key={column.title} class={`${column.number ? "num" : ""} ${column.wide ? "wide" : ""}`}>
                  {column.cell(item)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Filter(props: { label: string; value: string }) {
  const [text, setText] = useState(props.value);
  useEffect(() => {
    const timer = setTimeout(() => {
      if (text !== props.value) setQuery({ name: text, page: "" });
    }, 250);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <label class="filter">
      <span class="hidden">{props.label}</span>
      <input type="search" placeholder={props.label} value={text} onInput={(event) => setText(event.currentTarget.value)} />
    </label>
  );
}

export function Pager(props: { page: number; pages: number; found: number; total: number; what: string }) {
  const filtered = props.found !== props.total ? `${number(props.found)} of ${number(props.total)}` : number(props.total);
  return (
    <nav class="pager" aria-label={`Pages of ${props.what}`}>
      <span>
        {filtered} {props.total === 1 ? props.what.replace(/s$/, "") : props.what}
      </span>
      {props.pages > 1 && (
        <>
          <button type="button" disabled={props.page <= 1} onClick={() => setQuery({ page: String(props.page - 1) })}>
            Previous
          </button>
          <span>
            {props.page} / {props.pages}
          </span>
          <button type="button" disabled={props.page >= props.pages} onClick={() => setQuery({ page: String(props.page + 1) })}>
            Next
          </button>
        </>
      )}
    </nav>
  );
}

// -- telling ------------------------------------------------------------------------------------------------------

let say: (text: string, bad: boolean) => void = () => {};

export function Messages() {
  const [told, setTold] = useState<{ text: string; bad: boolean; number: number }[]>([]);
  useEffect(() => {
    let count = 0;
    say = (text, bad) => {
      const mine = ++count;
      setTold((before) => [...before.slice(-2), { text, bad, number: mine }]);
      setTimeout(() => setTold((before) => before.filter((one) => one.number !== mine)), bad ? 12_000 : 5_000);
    };
  }, []);
  return (
    <div class="messages" role="status" aria-live="polite">
      {told.map((one) => (
        <div key={one.number} class={one.bad ? "bad" : "good"}>
          {one.text}
        </div>
      ))}
    </div>
  );
}

export type Attempt = (deed: () => Promise<unknown>, done: string) => Promise<boolean>;

/** Does it, and tells what came of it. Whether it went well. */
export async function attempt(deed: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await deed();
    if (done) say(done, false);
    return true;
  } catch (error) {
    say(error instanceof Error ? error.message : String(error), true);
    return false;
  }
}

// -- forms --------------------------------------------------------------------------------------------------------

type Values = Record<string, string>;
export interface FieldOf {
  name: string;
  label: string;
  /** Of a file its text is the value. */
  kind?: "text" | "password" | "number" | "area" | "check" | "file";
  options?: string[] | [string, string][];
  value?: string;
  hint?: string;
  required?: boolean;
  placeholder?: string;
}

/** `submit` gets an `attempt` of its own: an error stands in the form, beside the field that it names. `refused`: why the node
    would refuse it, and so it cannot be sent. */
export function Form(props: {
  fields: FieldOf[];
  button: string;
  label: string;
  submit: (values: Values, attempt: Attempt) => Promise<boolean>;
  keep?: boolean;
  refused?: string | undefined;
  side?: ComponentChildren;
}) {
  const id = useId();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<{ text: string; field: string | undefined }>();
  const form = useRef<HTMLFormElement>(null);
  const here: Attempt = async (deed, done) => {
    try {
      await deed();
      if (done) say(done, false);
      return true;
    } catch (refused) {
      const text = refused instanceof Error ? refused.message : String(refused);
      setError({ text, field: props.fields.find((field) => text.includes(`'${field.name}'`))?.name });
      return false;
    }
  };
  const send = async (event: Event) => {
    event.preventDefault();
    setError(undefined);
    const data = new FormData(form.current!);
    const values: Values = {};
    setBusy(true);
    for (const field of props.fields) {
      const given = data.get(field.name) ?? "";
      values[field.name] = typeof given === "string" ? given : await given.text();
    }
    const well = await props.submit(values, here);
    setBusy(false);
    if (well && !props.keep) form.current?.reset();
  };
  return (
    <form ref={form} class="form" aria-label={props.label} onSubmit={send}>
      {props.fields.map((field) => (
        <Field key={field.name} field={field} id={`${id}-${field.name}`} error={error?.field === field.name ? error.text : undefined} />
      ))}
      {error && error.field === undefined && (
        <p class="note bad" role="alert">
          {error.text}
        </p>
      )}
      <div class="actions">
        <button type="submit" class="main" disabled={busy || props.refused !== undefined}>
          {props.button}
        </button>
        {props.refused && <small>{props.refused}</small>}
        {props.side}
      </div>
    </form>
  );
}

function Field({ field, id, error }: { field: FieldOf; id: string; error: string | undefined }) {
  const hint = field.hint ? `${id}-hint` : undefined;
  const wrong = error === undefined ? undefined : `${id}-error`;
  const described = [wrong, hint].filter(Boolean).join(" ") || undefined;
  const common = { id, name: field.name, required: field.required, "aria-describedby": described, "aria-invalid": wrong ? true : undefined, autocomplete: "off" as const };
  let control;
  if (field.options)
    control = (
      <select {...common}>
        {field.options.map((option) => {
          const [value, text] = typeof option === "string" ? [option, option] : option;
          return (
            <option key={value} value={value} selected={value === field.value}>
              {text}
            </option>
          );
        })}
      </select>
    );
  else if (field.kind === "area") control = <textarea {...common} rows={3} placeholder={field.placeholder} defaultValue={field.value} spellcheck={false} />;
  else if (field.kind === "check") control = <input {...common} type="checkbox" value="yes" defaultChecked={field.value === "yes"} />;
  else
    control = (
      <input
        {...common}
        autocomplete={field.kind === "password" ? "new-password" : "off"}
        type={(field.kind ?? "text") as "text"}
        placeholder={field.placeholder}
        defaultValue={field.value}
        spellcheck={false}
      />
    );
  return (
    <div class={`field ${field.kind ?? ""}`}>
      <label for={id}>{field.label}</label>
      {control}
      {wrong && (
        <small id={wrong} class="bad" role="alert">
          {error}
        </small>
      )}
      {field.hint && (
        <small id={hint} class="hint">
          {field.hint}
        </small>
      )}
    </div>
  );
}

/** JSON of a field or a file. */
export function json(text: string, example = '{"max-length": 1000}'): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`Not JSON: ${text.slice(0, 60)}. Write, for example, ${example}`);
  }
}

/** JSON of a field for arguments; empty is none. */
export function table(text: string): Record<string, unknown> {
  if (!text.trim()) return {};
  const value = json(text);
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error('An object is needed, for example {"max-length": 1000}');
  return value as Record<string, unknown>;
}

/** A button that asks before it does what cannot be undone. `refused`: why the node would refuse it; `disabled`: there is
    nothing to do it to. */
export function Sure(props: { button: string; question: string; detail: string; deed: () => Promise<unknown>; done: string; then?: () => void; small?: boolean; label?: string; disabled?: boolean; refused?: string | undefined }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  const act = async () => {
    dialog.current?.close();
    if (await attempt(props.deed, props.done)) props.then?.();
  };
  return (
    <>
      <button type="button" class={props.small ? "quiet" : "danger"} aria-label={props.label} disabled={props.disabled || props.refused !== undefined} title={props.refused} onClick={() => dialog.current?.showModal()}>
        {props.button}
      </button>
      <dialog ref={dialog} aria-labelledby={id}>
        <h2 id={id}>{props.question}</h2>
        <p>{props.detail}</p>
        <div class="actions">
          <button type="button" autofocus onClick={() => dialog.current?.close()}>
            Cancel
          </button>
          <button type="button" class="danger" onClick={act}>
            {props.button}
          </button>
        </div>
      </dialog>
    </>
  );
}

/** `many`: short ones, in columns. */
export function Facts(props: { of: [string, ComponentChildren][]; many?: boolean }) {
  return (
    <dl class={props.many ? "facts many" : "facts"}>
      {props.of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A regular expression of a permission. */
export const Pattern = ({ of }: { of: string }) => (of === "" || of === "^$" ? <small>none</small> : <code>{of}</code>);

/** A table of arguments or properties. */
export function Json({ of }: { of: Record<string, unknown> }) {
  const entries = Object.entries(of);
  if (!entries.length) return <>none</>;
  return (
    <ul class="plain">
      {entries.map(([name, value]) => (
        <li key={name}>
          <code>{name}</code> {typeof value === "string" ? value : JSON.stringify(value)}
        </li>
      ))}
    </ul>
  );
}

/** Members with a replica: the leader first; those behind are marked. */
export function Copies(props: { owner: string | null; replicas: string[]; inSync: string[] }) {
  const names = [...props.replicas].sort((a, b) => Number(b === props.owner) - Number(a === props.owner) || a.localeCompare(b));
  return (
    <span class="copies">
      {names.map((name) => {
        const kind = name === props.owner ? "owner" : props.inSync.includes(name) ? "synced" : "behind";
        const text = kind === "owner" ? "leader" : kind === "synced" ? "in sync" : "behind";
        return (
          <span key={name} class={`copy ${kind}`} title={`${name}: ${text}`}>
            {name}
            <span class="hidden"> ({text})</span>
          </span>
        );
      })}
    </span>
  );
}
