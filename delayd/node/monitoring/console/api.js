// Requests to the HTTP API of the node that served this page.

let token = sessionStorage.getItem("delayd-token") ?? "";

export const hasToken = () => token !== "";

export function useToken(given) {
  token = given;
  sessionStorage.setItem("delayd-token", given);
}

// An answer that is an error: problem+json.
export class Refused extends Error {
  constructor(problem) {
    super(`${problem.detail}${problem.remedy ? ` (${problem.remedy})` : ""} [${problem.code}]`);
    this.status = problem.status;
  }
}

const headers = () => (token ? { authorization: `Bearer ${token}` } : {});

export async function ask(method, path, body) {
  const asked = { method, headers: headers() };
  if (body !== undefined) {
    asked.headers["content-type"] = "application/json";
    asked.body = JSON.stringify(body);
  }
  const answer = await fetch(path, asked);
  const fields = await answer.json();
  if (!answer.ok) throw new Refused(fields);
  return fields;
}

// Yields the events of a stream until it ends. EventSource sends no token.
export async function* listen(path, signal) {
  const answer = await fetch(path, { headers: headers(), signal });
  if (!answer.ok) throw new Refused(await answer.json());
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) yield JSON.parse(part.slice("data: ".length));
  }
}
