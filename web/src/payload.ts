// A payload as a person reads it.
export type Shape = "text" | "json" | "hex";

interface Payload {
  payload: string;
  payload_encoding: "string" | "base64";
  truncated?: boolean;
}

const HEX_BYTES_MAX = 16_384;
const ROW = 16;

export function raw(of: Payload): Uint8Array {
  if (of.payload_encoding === "string") return new TextEncoder().encode(of.payload);
  return Uint8Array.from(atob(of.payload), (letter) => letter.charCodeAt(0));
}

function pretty(text: string): string | null {
  try {
    const value: unknown = JSON.parse(text);
    // numbers that JavaScript cannot hold would be shown as others
    const again = JSON.stringify(value);
    const digits = (from: string) => from.match(/\d{16,}/g)?.join() ?? "";
    return digits(again) === digits(text) ? JSON.stringify(value, null, 2) : null;
  } catch {
    return null;
  }
}

/** How it is shown at first: as what it is. */
export function shownAs(of: Payload): Shape {
  if (of.payload_encoding === "base64") return "hex";
  return /^\s*[[{]/.test(of.payload) && pretty(of.payload) !== null ? "json" : "text";
}

export function payloadAs(shape: Shape, of: Payload): string {
  if (shape === "hex") return hex(raw(of));
  const text = of.payload_encoding === "string" ? of.payload : new TextDecoder().decode(raw(of));
  if (shape === "text") return text;
  return pretty(text) ?? (of.truncated ? `Cut off, so no JSON:\n${text}` : `Not JSON, or with numbers that a browser would change:\n${text}`);
}

function hex(all: Uint8Array): string {
  const lines = [];
  for (let at = 0; at < Math.min(all.length, HEX_BYTES_MAX); at += ROW) {
    const row = [...all.subarray(at, at + ROW)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(3 * ROW)} ${letters}`);
  }
  if (all.length > HEX_BYTES_MAX) lines.push(`… ${all.length - HEX_BYTES_MAX} more bytes`);
  return lines.join("\n");
}
