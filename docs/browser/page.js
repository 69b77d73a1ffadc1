// Runs the shipped model with onnxruntime-web, on the processor and on WebGPU, and shows its numbers
// beside those of attention written out here in float64.

// A local copy of npm's `dist` is taken where the address says `?local`: no other, since what is
// loaded from there runs as this page.
const RUNTIME = location.search === "?local"
  ? new URL("ort/", location.href)
  : new URL("https://cdn.jsdelivr.net/npm/onnxruntime-web@1.27.0/dist/");
const PACKAGE = new URL("../../models/causal_attention/causal_attention/", location.href);

const TOKENS = 3;
const FEATURES = 2;
const EXAMPLE = {
  q: [1, 0, 0, 1, 1, 1],
  k: [1, 0, 0, 1, 1, 1],
  v: [2, 0, 0, 4, 2, 2],
};

// A unit in the last place of what is near 4, a few times: the error of honest float32.
const BUDGET = 2e-6;

// [tokens, tokens] weights and [tokens, features] output, each a flat array of float64.
function reference({ q, k, v }) {
  const weights = new Float64Array(TOKENS * TOKENS);
  const output = new Float64Array(TOKENS * FEATURES);
  for (let query = 0; query < TOKENS; query++) {
    const exponentials = [];
    for (let key = 0; key <= query; key++) {
      let product = 0;
      for (let f = 0; f < FEATURES; f++) {
        product += q[query * FEATURES + f] * k[key * FEATURES + f];
      }
      exponentials.push(Math.exp(product / Math.sqrt(FEATURES)));
    }
    const sum = exponentials.reduce((left, right) => left + right);
    exponentials.forEach((exponential, key) => {
      weights[query * TOKENS + key] = exponential / sum;
      for (let f = 0; f < FEATURES; f++) {
        output[query * FEATURES + f] += exponential / sum * v[key * FEATURES + f];
      }
    });
  }
  return { output, weights };
}

// Work given to the GPU. onnxruntime-web leaves to the processor what WebGPU does not run, without a
// word, so that the result alone does not tell.
let dispatched = 0;
if (globalThis.GPUComputePassEncoder) {
  const { dispatchWorkgroups } = GPUComputePassEncoder.prototype;
  GPUComputePassEncoder.prototype.dispatchWorkgroups = function (...size) {
    dispatched += 1;
    return dispatchWorkgroups.apply(this, size);
  };
}

function largestDifference(got, want) {
  // Math.max of something with NaN is NaN, which no budget allows.
  return Math.max(...Array.from(want, (value, index) => Math.abs(value - got[index])));
}

function element(name, text, parent, className = "") {
  const made = parent.appendChild(document.createElement(name));
  made.textContent = text;
  made.className = className;
  return made;
}

function table(title, values, columns, parent, shaded) {
  const made = element("table", "", parent);
  element("caption", title, made);
  for (let row = 0; row < TOKENS; row++) {
    const line = made.insertRow();
    for (let column = 0; column < columns; column++) {
      const value = values[row * columns + column];
      const cell = element("td", value.toFixed(4), line);
      if (shaded && column > row) {
        cell.className = "hidden";
        cell.title = `token ${row + 1} must not see token ${column + 1}`;
      } else if (shaded) {
        cell.style.background = `rgba(var(--seen), ${(value * 0.7).toFixed(3)})`;
      }
    }
  }
}

async function run(ort, provider, variant) {
  const session = await ort.InferenceSession.create(
    new URL(`${variant}/model.onnx`, PACKAGE).href, { executionProviders: [provider] },
  );
  const shape = [1, 1, TOKENS, FEATURES];
  const feeds = Object.fromEntries(Object.entries(EXAMPLE).map(
    ([name, values]) => [name, new ort.Tensor("float32", values, shape)],
  ));
  const { output, weights } = await session.run(feeds);
  const numbers = { output: await output.getData(), weights: await weights.getData() };
  await session.release();
  return numbers;
}

async function show(ort, provider, variant, title) {
  const place = element("article", "", document.getElementById("runs"));
  element("h2", title, place);
  const state = element("p", "running …", place, "quiet");
  const result = { provider };
  dispatched = 0;
  try {
    const numbers = await run(ort, provider, variant);
    const want = reference(EXAMPLE);
    const difference = Math.max(
      largestDifference(numbers.output, want.output),
      largestDifference(numbers.weights, want.weights),
    );
    const right = difference <= BUDGET;
    state.className = right ? "good" : "bad";
    const verdict = `${right ? "right" : "wrong"}: off by at most ${difference.toExponential(1)}`;
    state.textContent = dispatched ? `${verdict}; ${dispatched} kernels on the GPU` : verdict;
    const tables = element("div", "", place, "tables");
    table("weights: a row a token, a column what it sees", numbers.weights, TOKENS, tables, true);
    table("output", numbers.output, FEATURES, tables, false);
    Object.assign(result, {
      right, dispatched, output: Array.from(numbers.output), weights: Array.from(numbers.weights),
    });
  } catch (error) {
    state.className = "bad";
    state.textContent = `does not run: ${error.message ?? error}`;
    result.error = String(error);
  }
  return result;
}

async function adapterName() {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) return null;
  return [adapter.info.vendor, adapter.info.architecture].filter(Boolean).join(" ") || "unnamed";
}

async function main() {
  const results = [];
  try {
    const ort = await import(new URL("ort.webgpu.min.mjs", RUNTIME).href);
    ort.env.wasm.wasmPaths = RUNTIME.href;
    // More threads need a page that is isolated from others by headers of its server.
    ort.env.wasm.numThreads = 1;
    results.push(await show(ort, "wasm", "cpu", "On the processor (wasm)"));
    const adapter = await adapterName();
    if (adapter) {
      results.push(await show(ort, "webgpu", "webgpu", `On WebGPU (${adapter})`));
    } else {
      element("p", "This browser has no WebGPU here.", document.body, "quiet");
    }
  } catch (error) {
    element("p", `onnxruntime-web does not load: ${error.message ?? error}`, document.body, "bad");
  }
  // Read by the test.
  window.results = results;
}

main();
