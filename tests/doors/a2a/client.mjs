// The official client of A2A for JavaScript: `node client.mjs URL BINDING`, with the key in A2A_KEY, prints what it got as JSON.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.A2A_JS}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const sdk = await load("@a2a-js/sdk");
const { ClientFactory, ClientFactoryOptions, JsonRpcTransportFactory, RestTransportFactory, DefaultAgentCardResolver } =
  await load("@a2a-js/sdk/client");
const { Role, taskStateToJSON } = sdk.default ?? sdk;

const [url, binding] = process.argv.slice(2);
const fetchImpl = (input, init = {}) => {
  const headers = new Headers(init.headers);
  headers.set("Authorization", `Bearer ${process.env.A2A_KEY}`);
  return fetch(input, { ...init, headers });
};
const transport = binding === "JSONRPC" ? new JsonRpcTransportFactory({ fetchImpl }) : new RestTransportFactory({ fetchImpl });
const factory = new ClientFactory({
  ...ClientFactoryOptions.default,
  transports: [transport],
  preferredTransports: [binding],
  cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
});
const client = await factory.createFromUrl(`${url}/`);
const say = (text, ident, taskId = "") => ({
  tenant: "",
  message: {
    messageId: ident,
    contextId: "",
    taskId,
    role: Role.ROLE_USER,
    parts: [{ content: { $case: "text", value: text }, metadata: undefined, filename: "", mediaType: "" }],
    metadata: undefined,
    extensions: [],
    referenceTaskIds: [],
  },
  configuration: undefined,
  metadata: {},
});
const text = (task) => task.artifacts.map((each) => each.parts.map((part) => part.content.value).join("")).join("|");
const taskOf = (result) => result.payload?.value ?? result;

const answered = taskOf(await client.sendMessage(say("hello", `${binding}-1`)));
let streamed = "";
for await (const event of client.sendMessageStream(say("report", `${binding}-2`))) {
  const payload = event.payload ?? event;
  if (payload.$case === "artifactUpdate") streamed += payload.value.artifact.parts.map((part) => part.content.value).join("");
}
const question = taskOf(await client.sendMessage(say("ask", `${binding}-3`)));
const done = taskOf(await client.sendMessage(say("blue", `${binding}-4`, question.id)));
const found = await client.getTask({ tenant: "", id: answered.id, historyLength: undefined });
console.log(
  JSON.stringify({
    answered: text(answered),
    found: text(found),
    streamed,
    asked: taskStateToJSON(question.status.state),
    done: text(done).split("|").at(-1),
  }),
);
