// The page: asks the server every two seconds, shows one package at a time.

import { element } from "./drawing.js";
import { showLatency } from "./latency.js";
import { modelArticle, numbersOf, toneOf } from "./model.js";
import { writingArticle } from "./writing.js";

const EVERY = 2000;
const place = (id) => document.getElementById(id);
let chosen = null;

// What `fetch` gives, with the token that the person gave; an error of the server becomes its sentence.
async function request(path, body = undefined, signal = undefined) {
  const headers = { "content-type": "application/json" };
  const token = sessionStorage.getItem("token");
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(path, {
    headers,
    signal,
    method: body === undefined ? "GET" : "POST",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.status === 401) {
    place("token").hidden = false;
    throw new Error("This server wants a token.");
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Error(said.error?.message ?? said.error ?? `The server answered ${answer.status}.`);
  }
  return answer;
}

const ask = async (path, body) => (await request(path, body)).json();

function choose(model) {
  chosen = model.name;
  const parts = [modelArticle(model, ask)];
  if (model.language) parts.unshift(writingArticle(model, ask, request));
  place("model").replaceChildren(...parts);
}

function showModels(models) {
  place("models").replaceChildren(
    ...models.map((model) => {
      const [tone, verdict] = toneOf(model);
      return element(
        "button",
        {
          "aria-pressed": String(model.name === chosen),
          onclick: () => { choose(model); showModels(models); },
        },
        model.name, " ", element("span", { class: tone }, model.ready ? verdict : "warming up"),
      );
    }),
  );
}

async function look() {
  try {
    const said = await ask("/page/models");
    place("token").hidden = true;
    place("latency").hidden = false;
    const count = said.models.length;
    place("server").textContent = `${said.version}, ${count} ${count === 1 ? "package" : "packages"}`;
    showLatency(place("protocols"), said.seconds);
    if (chosen === null && count) choose(said.models[0]);
    const model = said.models.find((one) => one.name === chosen);
    const numbers = document.querySelector("#model .numbers");
    if (model && numbers) numbers.replaceChildren(numbersOf(model));
    if (place("models").children.length !== count || said.models.some((one) => !one.ready)) showModels(said.models);
  } catch (error) {
    place("server").textContent = error instanceof TypeError ? "The server does not answer." : error.message;
  }
}

place("token").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", new FormData(event.target).get("token"));
  look();
});

async function keepLooking() {
  if (!document.hidden) await look();
  setTimeout(keepLooking, EVERY);
}
keepLooking();
