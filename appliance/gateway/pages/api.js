// The gateway's endpoints, with the token that it may ask for.

const parameters = new URLSearchParams(location.search);
const BACK_MS = 1500;

export function token() {
  return parameters.get("token") || localStorage.getItem("token") || "";
}

export function keepToken(value) {
  localStorage.setItem("token", value);
}

function headers(more) {
  return token() ? { authorization: `Bearer ${token()}`, ...more } : more;
}

// Throws an Error with `status` and the gateway's own message.
// `body` becomes JSON, `form` is FormData; with one of them the default method is POST.
export async function call(path, { body, form, method, signal } = {}) {
  const sent = headers(body === undefined ? {} : { "content-type": "application/json" });
  const answer = await fetch(path, {
    method: method ?? (body === undefined && !form ? "GET" : "POST"),
    body: form ?? JSON.stringify(body),
    headers: sent,
    signal,
  });
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    const error = new Error(body.error?.message || `${answer.status} ${answer.statusText}`);
    error.status = answer.status;
    throw error;
  }
  return answer;
}

// Follows a stream of events for ever: EventSource comes back by itself from a lost connection, but not from a
// refusal. `handlers` by name of the event; `state` is called with true and false.
export function follow(path, query, handlers, state = () => {}) {
  let source = null;
  const connect = () => {
    const all = new URLSearchParams({ ...query, ...(token() ? { token: token() } : {}) });
    source = new EventSource(`${path}?${all}`);
    source.onopen = () => state(true);
    source.onerror = () => {
      state(false);
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, BACK_MS);
    };
    for (const [name, handle] of Object.entries(handlers))
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  };
  connect();
}
