// Vercel's AI SDK against the door, by its provider for OpenAI (responses, chat) and by that for compatible servers.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const openai = createOpenAI({ baseURL, apiKey });
const compatible = createOpenAICompatible({ name: "agents", baseURL, apiKey });
const found = {};

for (const [name, which] of [["responses", openai.responses(model)], ["chat", openai.chat(model)], ["compatible", compatible(model)]]) {
  const messages = [{ role: "user", content: `hello ${name}` }];
  const first = await generateText({ model: which, messages });
  messages.push(...first.response.messages, { role: "user", content: "more" });
  const second = await generateText({ model: which, messages });
  const stream = streamText({ model: which, prompt: "stream" });
  const pieces = [];
  for await (const piece of stream.textStream) pieces.push(piece);
  const thinking = await generateText({ model: which, prompt: "think" });
  const used = await generateText({ model: which, prompt: "tokens" });
  found[name] = {
    texts: [first.text, second.text],
    pieces,
    finish: await stream.finishReason,
    thoughts: thinking.reasoningText ?? null,
    tokens: used.usage.totalTokens,
  };
}
console.log(JSON.stringify(found));
