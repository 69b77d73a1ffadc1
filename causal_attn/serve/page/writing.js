// A box to type into; tokens as they come; on a click, what a token saw and which weight it gave.

import { element } from "./drawing.js";

// Lines of server-sent events, each "data: …".
async function* events(answer) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of chunks(answer.body)) {
    rest += decoder.decode(bytes, { stream: true });
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function* chunks(body) {
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

export function writingArticle(model, ask, request) {
  const path = `/page/models/${encodeURIComponent(model.name)}`;
  const language = model.language;
  const heads = language.heads;
  const box = element("textarea", {
    "aria-label": language.text ? "Prompt" : "Tokens of the prompt, separated by commas",
    value: language.text ? "" : "1, 2, 3",
    placeholder: language.text ? "Once upon a time" : "1, 2, 3",
  });
  const chat = element("input", { type: "checkbox", checked: language.chat, disabled: !language.chat });
  const most = element("input", { type: "number", min: 1, max: 4096, value: 48, "aria-label": "New tokens" });
  const warmth = element("input", { type: "number", min: 0, max: 2, step: 0.1, value: 0, "aria-label": "Temperature" });
  const run = element("button", { type: "submit" }, "Generate");
  const stop = element("button", { type: "button", disabled: true }, "Stop");
  const layer = element("select", { "aria-label": "Layer" }, ...heads.map((_, index) => element("option", { value: index }, `layer ${index}`)));
  const head = element("select", { "aria-label": "Head" });
  const told = element("p", { class: "quiet", "aria-live": "polite" });
  const text = element("div", { class: "text" });
  let tokens = [], selected = null, running = null, weights = new Map();

  function fillHeads() {
    const count = heads[Number(layer.value)] ?? 0;
    head.replaceChildren(...Array.from({ length: count }, (_, index) => element("option", { value: index }, `head ${index}`)));
  }

  function add(id, word, fresh) {
    const index = tokens.length;
    const special = word === "";
    const made = element(
      "button",
      {
        type: "button",
        class: [fresh ? "new" : "", special ? "special" : ""].join(" ").trim(),
        title: `token ${index}, id ${id}`,
        onclick: () => select(index),
      },
      special ? `⟨${id}⟩` : word,
    );
    tokens.push({ id, made });
    text.append(made);
  }

  async function rowOf(index) {
    const key = `${layer.value}/${head.value}/${tokens.length}`;
    if (!weights.has(key)) {
      const ids = tokens.map((token) => token.id);
      weights.set(key, ask(`${path}/attentions`, { ids, layer: Number(layer.value), head: Number(head.value) }));
    }
    try {
      return (await weights.get(key)).weights[index];
    } catch (error) {
      weights.delete(key);
      throw error;
    }
  }

  async function select(index) {
    selected = index;
    tokens.forEach(({ made }, other) => {
      made.classList.toggle("chosen", other === index);
      made.classList.toggle("unseen", other > index);
      made.style.background = "";
    });
    const seen = index === 0 ? "itself alone" : `the ${index + 1} tokens up to itself`;
    if (!heads.length) {
      told.textContent =
        `Token ${index} could see ${seen}. Weights are shown for a package exported with ` +
        "`causal-attn export --output-attentions`.";
      return;
    }
    try {
      const row = await rowOf(index);
      if (selected !== index) return;
      const largest = Math.max(...row);
      row.forEach((weight, other) => {
        const made = tokens[other].made;
        const share = Math.sqrt(weight / largest) * 70;
        made.style.background = `color-mix(in srgb, var(--seen) ${share.toFixed(1)}%, transparent)`;
        made.title = `token ${other}, id ${tokens[other].id}, weight ${weight.toFixed(4)}`;
      });
      const first = row.indexOf(largest);
      told.textContent =
        `Token ${index} could see ${seen}; in layer ${layer.value}, head ${head.value} it gave most, ` +
        `${(largest * 100).toFixed(1)} %, to token ${first}. Darker is more.`;
    } catch (error) {
      told.textContent = error.message;
    }
  }

  async function generate() {
    const asked = language.text
      ? await ask(`${path}/tokens`, { text: box.value, chat: chat.checked })
      : { ids: box.value.split(/[\s,]+/).filter(Boolean).map(Number) };
    tokens = []; selected = null; weights = new Map();
    text.replaceChildren();
    asked.ids.forEach((id, index) => add(id, asked.words?.[index] ?? `${id} `, false));
    const began = performance.now();
    let first = null, count = 0;
    const answer = await request(
      "/v1/completions",
      {
        model: model.name,
        prompt: asked.ids,
        max_tokens: Number(most.value),
        temperature: Number(warmth.value),
        stream: true,
        return_token_ids: true,
      },
      running.signal,
    );
    for await (const event of events(answer)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0];
      for (const id of choice?.token_ids ?? []) {
        first ??= performance.now();
        count += 1;
        add(id, language.text ? choice.text : `${id} `, true);
      }
      const seconds = (performance.now() - (first ?? began)) / 1e3;
      if (first !== null) {
        told.textContent =
          `first token after ${((first - began) / 1e3).toFixed(2)} s` +
          (count > 1 ? `, then ${((count - 1) / seconds).toFixed(1)} tokens/s` : "") +
          `, ${count} new tokens. Click a token to see what it saw.`;
      }
    }
  }

  async function submitted(event) {
    event.preventDefault();
    running?.abort();
    const own = (running = new AbortController());
    run.disabled = true;
    stop.disabled = false;
    told.textContent = "";
    try {
      await generate();
    } catch (error) {
      if (error.name !== "AbortError") told.textContent = error.message;
    } finally {
      if (running === own) running = null;
      run.disabled = false;
      stop.disabled = true;
    }
  }

  stop.addEventListener("click", () => running?.abort());
  layer.addEventListener("change", () => { fillHeads(); if (selected !== null) select(selected); });
  head.addEventListener("change", () => { if (selected !== null) select(selected); });
  fillHeads();
  return element(
    "article",
    { class: "writing" },
    element("h2", {}, `Write with ${model.name}`),
    element(
      "form",
      { onsubmit: submitted },
      box,
      element(
        "div",
        { class: "controls" },
        run, stop,
        language.chat ? element("label", {}, chat, " as a chat") : null,
        element("label", {}, "new tokens ", most),
        element("label", {}, "temperature ", warmth),
        heads.length ? layer : null,
        heads.length ? head : null,
      ),
    ),
    text,
    told,
  );
}
