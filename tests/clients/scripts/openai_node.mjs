// OpenAI's client for Node.js, behind two pipes as serving.py has it.
// It runs in the folder whose node_modules has the client.

import { createRequire } from "node:module";
import readline from "node:readline";

const require = createRequire(`${process.cwd()}/`);
const { OpenAI } = require("openai");
const { zodResponseFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const SHORT = 16; // tokens of an answer that a case looks at
const LONG = 3900; // tokens of an answer that a case leaves
const PROMPT = "Tell me about lists, please.";
const MESSAGES = [
  { role: "system", content: "You are brief." },
  { role: "user", content: PROMPT },
];
const WEATHER = {
  type: "function",
  function: {
    name: "weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
      required: ["city"],
    },
  },
};
const Place = z.object({ city: z.enum(["Paris", "Rome"]), large: z.boolean() });

const made = ({ url, key }, options = {}) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, ...options });

const collected = async (stream) => {
  const all = [];
  for await (const each of stream) all.push(each);
  return all;
};

const finishes = (choices) => choices.map((c) => c.finish_reason).filter(Boolean);

const called = (choice) => ({
  finish: choice.finish_reason,
  calls: (choice.message.tool_calls ?? []).map((c) => [c.function.name, c.function.arguments]),
});

const short = ({ model }, more = {}) => ({
  model,
  messages: MESSAGES,
  max_tokens: SHORT,
  temperature: 0,
  ...more,
});
const asked = ({ model }) => ({
  model,
  messages: MESSAGES,
  max_tokens: 200,
  tools: [WEATHER],
  // Named, and one call at a time: a model without sense would otherwise call without end.
  parallel_tool_calls: false,
  tool_choice: { type: "function", function: { name: "weather" } },
});
const placed = ({ model }) => ({
  model,
  messages: MESSAGES,
  max_tokens: 200,
  response_format: zodResponseFormat(Place, "place"),
});
const endless = ({ model }, more = {}) => ({
  model,
  messages: MESSAGES,
  max_tokens: LONG,
  ignore_eos: true,
  ...more,
});
const input = ({ model }, more = {}) => ({
  model,
  input: PROMPT,
  max_output_tokens: SHORT,
  store: false,
  ...more,
});

const cases = {
  async chat(target) {
    const { data, response } = await made(target)
      .chat.completions.create(short(target))
      .withResponse();
    const [choice] = data.choices;
    return {
      text: choice.message.content,
      finish: choice.finish_reason,
      model: data.model,
      tokens: data.usage.completion_tokens,
      upstream: response.headers.get("x-specswitch-upstream"),
      reason: response.headers.get("x-specswitch-reason"),
      request: Boolean(response.headers.get("x-request-id")),
    };
  },

  async chat_stream(target) {
    const more = { stream: true, stream_options: { include_usage: true } };
    const chunks = await collected(await made(target).chat.completions.create(short(target, more)));
    const choices = chunks.flatMap((chunk) => chunk.choices);
    return {
      text: choices.map((c) => c.delta.content ?? "").join(""),
      finish: finishes(choices),
      tokens: chunks.filter((chunk) => chunk.usage).map((chunk) => chunk.usage.completion_tokens),
      chunks: chunks.length,
    };
  },

  async side_by_side(target) {
    const client = made(target);
    const numbers = [...Array(8).keys()];
    const answers = await Promise.all(
      numbers.map((number) =>
        client.chat.completions.create(
          short(target, { messages: [{ role: "user", content: `number ${number}` }] }),
        ),
      ),
    );
    return { answers: answers.filter((each) => each.choices[0].message.content).length };
  },

  async two_choices(target) {
    const answer = await made(target).chat.completions.create(
      short(target, { n: 2, temperature: 1 }),
    );
    return { indexes: answer.choices.map((choice) => choice.index) };
  },

  async completion(target) {
    const { messages: _, ...fields } = short(target, { prompt: PROMPT });
    const [choice] = (await made(target).completions.create(fields)).choices;
    return { text: choice.text, finish: choice.finish_reason };
  },

  async completion_stream(target) {
    const { messages: _, ...fields } = short(target, { prompt: PROMPT, stream: true });
    const chunks = await collected(await made(target).completions.create(fields));
    const choices = chunks.flatMap((chunk) => chunk.choices);
    return { text: choices.map((c) => c.text).join(""), finish: finishes(choices) };
  },

  async tools(target) {
    return called((await made(target).chat.completions.create(asked(target))).choices[0]);
  },

  async tools_stream(target) {
    const stream = made(target).chat.completions.stream(asked(target));
    return called((await stream.finalChatCompletion()).choices[0]);
  },

  async structured(target) {
    const answer = await made(target).chat.completions.parse(placed(target));
    return answer.choices[0].message.parsed;
  },

  async structured_stream(target) {
    const stream = made(target).chat.completions.stream(placed(target));
    return (await stream.finalChatCompletion()).choices[0].message.parsed;
  },

  async respond(target) {
    const answer = await made(target).responses.create(input(target));
    return { text: answer.output_text, status: answer.status };
  },

  async respond_stream(target) {
    const events = await collected(
      await made(target).responses.create(input(target, { stream: true })),
    );
    const deltas = events.filter((event) => event.type === "response.output_text.delta");
    return { text: deltas.map((event) => event.delta).join(""), last: events.at(-1).type };
  },

  async respond_stored(target) {
    const client = made(target);
    const answer = await client.responses.create(input(target, { store: true }));
    const again = await client.responses.retrieve(answer.id);
    return {
      text: answer.output_text,
      again: again.output.flatMap((o) => o.content ?? []).map((c) => c.text).join(""),
      same: again.id === answer.id,
    };
  },

  async models(target) {
    const client = made(target);
    const found = (await collected(client.models.list())).map((each) => each.id);
    return { found, one: (await client.models.retrieve(found[0])).id };
  },

  embeddings: (target) => made(target).embeddings.create({ model: target.model, input: PROMPT }),

  files: (target) => made(target).files.list(),

  too_long: (target) =>
    made(target).chat.completions.create(
      short(target, { messages: [{ role: "user", content: "word ".repeat(200_000) }] }),
    ),

  async patient(target) {
    const started = performance.now();
    const client = made(target, { maxRetries: 4 });
    const answer = await client.chat.completions.create(short(target));
    return {
      finish: answer.choices[0].finish_reason,
      seconds: (performance.now() - started) / 1000,
    };
  },

  async abort(target) {
    const stream = await made(target).chat.completions.create(endless(target, { stream: true }));
    let read = 0;
    for await (const _ of stream) {
      read += 1;
      if (read === 3) stream.controller.abort();
    }
    return { read };
  },

  async impatient(target) {
    const client = made(target, { timeout: 1000 });
    return client.chat.completions.create(endless(target));
  },
};

const told = (error) => {
  const types = [];
  for (let at = error; at && at !== Object.prototype; at = Object.getPrototypeOf(at))
    if (Object.hasOwn(at, "constructor")) types.push(at.constructor.name);
  return {
    types,
    status: error.status ?? null,
    code: error.code ?? null,
    message: String(error.message),
    body: JSON.stringify(error.error ?? null),
    retry_after: error.headers?.get("retry-after") ?? null,
  };
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { case: name, ...target } = JSON.parse(line);
  const answer = await cases[name](target).then(
    (saw) => ({ saw }),
    (error) => ({ raised: told(error) }),
  );
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
