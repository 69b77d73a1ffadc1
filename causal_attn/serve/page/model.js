// One package: what goes in and out, what was proved, where it runs.

import { element, table, visibility } from "./drawing.js";

const RESULTS = new Map([
  [true, ["good", "passed"]],
  [false, ["bad", "failed"]],
  [null, ["unsure", "undecided"]],
]);

export function toneOf(model) {
  const certificate = model.certificate;
  if (certificate === null) return ["bad", "not checked"];
  const tones = { causal: "good", "of all tokens": "good", conditional: "unsure", undecided: "unsure" };
  return [tones[certificate.verdict] ?? "bad", certificate.verdict];
}

function claim(model) {
  const [tone, verdict] = toneOf(model);
  const certificate = model.certificate;
  const parts = [element("span", { class: `verdict ${tone}` }, verdict)];
  if (certificate === null) parts.push(" This package has no certificate and was accepted without.");
  else {
    const passed = certificate.checks.filter((check) => check.passed).length;
    parts.push(` by its certificate: ${passed} of ${certificate.checks.length} checks passed`);
    if (certificate.conditions.length) parts.push(`, while ${certificate.conditions.join(" and ")}`);
    if (certificate.score_bound !== null) parts.push(`, while every |score| < ${certificate.score_bound.toPrecision(3)}`);
    parts.push(". Digest ", element("code", {}, certificate.digest), "…");
  }
  return element("p", {}, ...parts);
}

function tensors(title, list) {
  const shown = list.filter((tensor) => !tensor.cache);
  const kept = list.filter((tensor) => tensor.cache);
  const row = (tensor) => [element("code", {}, tensor.name), tensor.dtype, element("code", {}, `[${tensor.dims.join(", ")}]`)];
  const rows = shown.map(row);
  if (kept.length > 4) {
    rows.push([`${kept.length} tensors of the cache`, kept[0].dtype, element("code", {}, `[${kept[0].dims.join(", ")}]`)]);
  } else rows.push(...kept.map(row));
  return element("div", {}, element("h3", {}, title), table(["name", "dtype", "dims"], rows));
}

function checks(certificate) {
  const rows = certificate.checks.map((check) => {
    const [tone, word] = RESULTS.get(check.passed);
    const where = check.provider ? ` (${check.provider})` : "";
    return [element("span", { class: tone }, word), check.name + where, element("span", { class: "quiet" }, check.detail)];
  });
  return element(
    "details",
    {},
    element("summary", {}, `All ${certificate.checks.length} checks`),
    table(["", "check", "what it saw"], rows),
  );
}

function placement(model) {
  const rows = model.placement.map((part) => [
    part.provider,
    part.nodes.toLocaleString("en"),
    part.operators.slice(0, 8).map(([name, count]) => `${count} ${name}`).join(", ") +
      (part.operators.length > 8 ? ", …" : ""),
  ]);
  return element("div", {}, element("h3", {}, "Where its nodes run"), table(["provider", "nodes", "operators"], rows));
}

function picture(reach) {
  if (reach.output === null) return null;
  const leaks = reach.rows.some((row, i) => row.some((seen, j) => seen && j > i));
  return element(
    "figure",
    {},
    visibility(reach.rows),
    element(
      "figcaption",
      {},
      `Rows of ${reach.output} (down) that changed when one token (across) was changed, on this server just now. `,
      element("span", { class: leaks ? "bad" : "good" }, leaks ? "A row sees its future." : "No row sees its future."),
    ),
  );
}

// `numbers` is given again on every look; the rest of a package never changes.
export function numbersOf(model) {
  const rows = Object.entries(model.numbers).map(([name, value]) => [
    name.replaceAll("_", " "),
    element("td", { class: "number" }, value.toLocaleString("en")),
  ]);
  return table(["now and since the start", ""], rows);
}

export function modelArticle(model, ask) {
  const figure = element("div", {}, element("p", { class: "quiet" }, "Looking …"));
  ask(`/page/models/${encodeURIComponent(model.name)}/reach`)
    .then((reach) => figure.replaceChildren(...[picture(reach)].filter(Boolean)))
    .catch((error) => figure.replaceChildren(element("p", { role: "alert" }, error.message)));
  const contract = model.contract;
  const bounds = Object.entries(contract.bounds).map(
    ([name, [low, high]]) => `${name} from ${low}${high === null ? " on" : ` to ${high}`}`,
  );
  return element(
    "article",
    {},
    element("h2", {}, model.name),
    element(
      "div",
      { class: "side" },
      element(
        "div",
        {},
        claim(model),
        element(
          "p",
          { class: "quiet" },
          `Form ${contract.form}, opset ${contract.opset}, on ${model.provider}` +
            (bounds.length ? `; ${bounds.join(", ")}` : ""),
        ),
        tensors("Inputs", contract.inputs),
        tensors("Outputs", contract.outputs),
      ),
      figure,
    ),
    placement(model),
    element("h3", {}, "Counts"),
    element("div", { class: "numbers" }, numbersOf(model)),
    model.certificate === null ? null : element("h3", {}, "What was checked"),
    model.certificate === null ? null : checks(model.certificate),
  );
}
