// What an administrator does to keys and workers of a pool; each deed asks first.
import type { PoolGroup, PoolWorker } from "./api";
import { path, post } from "./api";
import { plural } from "./format";
import { Form, Sure } from "./ui";

interface Word {
  button: string;
  question: string;
  detail: string;
  done: string;
}

const WORDS: Record<"stop" | "retry" | "pin" | "unpin", (key: string) => Word> = {
  stop: (key) => ({ button: "Stop", question: `Stop the workers of key ${key}?`, detail: "They get no more requests, finish what they hold, and end. The next request starts one.", done: `The workers of key ${key} end.` }),
  retry: (key) => ({ button: "Retry", question: `Try the starts of key ${key} again?`, detail: "A worker is started at once, without waiting for the next try.", done: `Key ${key} is tried again.` }),
  pin: (key) => ({ button: "Pin", question: `Pin key ${key}?`, detail: "It keeps its queue and a worker until it is unpinned, and makes no room for others.", done: `Key ${key} is pinned.` }),
  unpin: (key) => ({ button: "Unpin", question: `Unpin key ${key}?`, detail: "It ends when it is idle, and makes room for others.", done: `Key ${key} is not pinned.` }),
};

/** Of one key. A pinned one cannot be stopped; a path cannot name the empty one. */
export function KeyDeeds(props: { at: string; group: PoolGroup; then: () => void }) {
  const { group } = props;
  const words: (keyof typeof WORDS)[] = [...(group.failed_why ? (["retry"] as const) : []), ...(group.pinned ? (["unpin"] as const) : (["pin", "stop"] as const))];
  const { key } = group;
  if (key === "") return null;
  return (
    <>
      {words.map((name) => {
        const word = WORDS[name](key);
        return <Sure key={name} small button={word.button} label={`${word.button} key ${key}`} question={word.question} detail={word.detail} deed={() => post(`${props.at}/groups/${path(group.key)}/${name}`, {})} done={word.done} then={props.then} />;
      })}
    </>
  );
}

export function StartKey(props: { at: string; then: () => void }) {
  return (
    <Form
      label="Start a key"
      button="Start"
      fields={[{ name: "key", label: "Key", required: true, hint: "Its queue is made, with a worker, before anybody asks for it." }]}
      submit={(values, attempt) => attempt(() => post(`${props.at}/groups/${path(values.key ?? "")}/start`, {}), `Key ${values.key} has a queue.`).then((done) => (done && props.then(), done))}
    />
  );
}

/** Of one worker that is not about to end. */
export function StopWorker(props: { at: string; worker: PoolWorker; then: () => void }) {
  const { worker } = props;
  if (worker.retired || worker.revoked) return null;
  return (
    <Sure
      small
      button="Stop"
      label={`Stop worker ${worker.id}`}
      question={`Stop worker ${worker.id}?`}
      detail={`It gets no more requests, finishes what it holds (${plural(worker.held, "request")}), and ends. If its key needs a worker, another one is started.`}
      deed={() => post(`${props.at}/workers/${path(worker.id)}/stop`, {})}
      done={`Worker ${worker.id} ends.`}
      then={props.then}
    />
  );
}
