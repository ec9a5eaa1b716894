// The usual settings of a queue, as fields of forms: arguments of a declaration (x-...) and keys of policies.
import type { FieldOf } from "./ui";
import { table } from "./ui";

const USUAL: { key: string; label: string; number?: boolean; options?: string[]; placeholder?: string; hint?: string }[] = [
  { key: "max-length", label: "Max length", number: true, hint: "ready messages at most" },
  { key: "max-length-bytes", label: "Max length bytes", number: true },
  { key: "overflow", label: "Overflow", options: ["", "drop-head", "reject-publish", "reject-publish-dlx"] },
  { key: "message-ttl", label: "Message TTL", number: true, hint: "ms" },
  { key: "expires", label: "Expires", number: true, hint: "ms without use, then the queue is deleted" },
  { key: "dead-letter-exchange", label: "Dead letter exchange" },
  { key: "dead-letter-routing-key", label: "Dead letter routing key" },
  { key: "delivery-limit", label: "Delivery limit", number: true },
  { key: "replicas", label: "Replicas", number: true },
];
const MORE = "more";

type Settings = Record<string, unknown>;

/** Fields of the usual settings, with these values, and one for all others. `prefix`: `x-` of arguments. */
export function settingFields(prefix: string, of: Settings = {}): FieldOf[] {
  const rest = { ...of };
  const fields = USUAL.map(({ key, label, number, options, hint }): FieldOf => {
    const value = rest[prefix + key];
    delete rest[prefix + key];
    const field: FieldOf = { name: prefix + key, label, value: value === undefined ? "" : String(value) };
    if (number) field.kind = "number";
    if (options) field.options = options;
    if (hint) field.hint = hint;
    return field;
  });
  const example = `{"${prefix}consumer-timeout": 60000}`;
  const more: FieldOf = { name: MORE, label: prefix ? "More arguments" : "More keys", kind: "area", placeholder: example, hint: "JSON; empty for none" };
  if (Object.keys(rest).length) more.value = JSON.stringify(rest);
  return [...fields, more];
}

/** What such fields say. */
export function settingsOf(prefix: string, values: Record<string, string>): Settings {
  const found: Settings = {};
  for (const { key, number } of USUAL) {
    const text = (values[prefix + key] ?? "").trim();
    if (text) found[prefix + key] = number ? Number(text) : text;
  }
  return { ...found, ...table(values[MORE] ?? "") };
}
