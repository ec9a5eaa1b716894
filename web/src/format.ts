// Numbers and times as people read them.
const whole = new Intl.NumberFormat("en");

export const number = (value: number | undefined): string => (value === undefined ? "–" : whole.format(Math.round(value)));

export function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e9) return `${trimmed(value / 1e9)} G`;
  if (size >= 1e6) return `${trimmed(value / 1e6)} M`;
  if (size >= 1e4) return `${trimmed(value / 1e3)} k`;
  return size >= 10 || Number.isInteger(value) ? whole.format(Math.round(value)) : trimmed(value);
}

const trimmed = (value: number): string => (Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toFixed(1))));

export const perSecond = (value: number | undefined): string => (value === undefined ? "–" : `${short(value)}/s`);

export function bytes(value: number | undefined): string {
  if (value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit++;
  }
  return `${unit ? trimmed(size) : size} ${units[unit]}`;
}

export function span(ms: number | undefined | null): string {
  if (ms === undefined || ms === null) return "–";
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export const plural = (count: number, one: string, many = `${one}s`): string => `${number(count)} ${count === 1 ? one : many}`;
