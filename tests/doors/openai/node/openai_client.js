// OpenAI's own client for Node against the door. It prints what it read as one JSON object.
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const found = {};

found.models = [];
for await (const one of client.models.list()) found.models.push(one.id);

const chat = await client.chat.completions.create({ model, messages: [{ role: "user", content: "hello" }] });
found.chat = chat.choices[0].message.content;

found.stream = [];
found.thoughts = "";
for (const content of ["stream", "think"]) {
  for await (const chunk of await client.chat.completions.create({
    model, stream: true, messages: [{ role: "user", content }],
  })) {
    const delta = chunk.choices[0]?.delta ?? {};
    if (delta.content && content === "stream") found.stream.push(delta.content);
    found.thoughts += delta.reasoning_content ?? "";
  }
}

const first = await client.responses.create({ model, input: "hello" });
const second = await client.responses.create({ model, input: "more", previous_response_id: first.id });
found.responses = [first.output_text, second.output_text];
found.retrieved = (await client.responses.retrieve(second.id)).output_text;
found.streamed = (await client.responses.stream({ model, input: "think" }).finalResponse()).output_text;

try {
  await client.chat.completions.create({ model: "nobody", messages: [{ role: "user", content: "hello" }] });
} catch (error) {
  found.error = [error.status, error.code];
}
console.log(JSON.stringify(found));
