// What a page shows is asked for again every few seconds, while somebody looks at it.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Refused, get } from "./api";

export const EVERY_MS = 5_000;

export interface Live<T> {
  value: T | undefined;
  error: string | undefined;
  status: number | undefined;
  again: () => void;
}

/** The document at a path. `again` asks at once: after something was changed. An empty path asks nothing. */
export function useLive<T>(path: string, everyMs = EVERY_MS): Live<T> {
  const [answer, setAnswer] = useState<{ path: string; value?: T; error?: string; status?: number }>({ path });
  const turn = useRef(0);
  const ask = useCallback(async () => {
    if (!path) return;
    const mine = ++turn.current;
    try {
      const value = await get<T>(path);
      if (mine === turn.current) setAnswer({ path, value });
    } catch (error) {
      if (mine !== turn.current) return;
      const status = error instanceof Refused ? error.status : undefined;
      const text = error instanceof Error ? error.message : String(error);
      // what was known stays on the page: it is said that it is old
      setAnswer((before) => ({ path, value: before.path === path ? before.value : undefined, error: text, status }));
    }
  }, [path]);
  useEffect(() => {
    void ask();
    const timer = setInterval(() => {
      if (!document.hidden) void ask();
    }, everyMs);
    const seen = () => {
      if (!document.hidden) void ask();
    };
    document.addEventListener("visibilitychange", seen);
    return () => {
      turn.current++;
      clearInterval(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [ask, everyMs]);
  const mine = answer.path === path;
  return {
    value: mine ? answer.value : undefined,
    error: mine ? answer.error : undefined,
    status: mine ? answer.status : undefined,
    again: () => void ask(),
  };
}

/** The words after `#/`, decoded, and the query behind them. */
export function place(): { words: string[]; query: URLSearchParams } {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const words = path.split("/").filter(Boolean);
  return { words: words.map((word) => decodeURIComponent(word)), query: new URLSearchParams(query) };
}

export function usePlace(): ReturnType<typeof place> {
  const [here, setHere] = useState(place);
  useEffect(() => {
    const moved = () => setHere(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return here;
}

/** Changes the query of this place without a new entry in the history. */
export function setQuery(changes: Record<string, string>): void {
  const { words, query } = place();
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  history.replaceState(null, "", `#/${words.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export const link = (...words: string[]) => `#/${words.map(encodeURIComponent).join("/")}`;
