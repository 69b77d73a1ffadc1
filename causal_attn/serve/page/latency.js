// Live latency, from the same histograms that Prometheus reads: what was added since the last look.

import { element, line } from "./drawing.js";

const KEPT = 60;
const histories = new Map();
let before = null;

function quantile(buckets, share) {
  const total = buckets.at(-1)[1];
  let low = 0, under = 0;
  for (const [bound, count] of buckets) {
    if (count >= share * total) {
      if (bound === null) return low;
      return low + ((bound - low) * (share * total - under)) / Math.max(count - under, 1e-9);
    }
    low = bound;
    under = count;
  }
  return low;
}

function spoken(seconds) {
  if (seconds === null) return "—";
  return seconds < 1 ? `${(seconds * 1e3).toPrecision(2)} ms` : `${seconds.toPrecision(2)} s`;
}

// `seconds`: protocol to [[upper bound or null, requests up to it], …], counted since the start.
export function showLatency(place, seconds) {
  const now = performance.now();
  const blocks = [];
  for (const [protocol, buckets] of Object.entries(seconds)) {
    if (protocol === "page") continue;
    const past = before?.seconds[protocol] ?? buckets.map(([bound]) => [bound, 0]);
    const since = before ? (now - before.now) / 1e3 : null;
    const added = buckets.map(([bound, count], index) => [bound, count - past[index][1]]);
    const requests = before ? added.at(-1)[1] : 0;
    const half = requests ? quantile(added, 0.5) : null;
    const most = requests ? quantile(added, 0.99) : null;
    const history = histories.get(protocol) ?? [];
    history.push(half);
    histories.set(protocol, history.slice(-KEPT));
    const rate = since ? `${(requests / since).toFixed(1)} requests/s` : "";
    blocks.push(
      element(
        "div",
        { class: "protocol" },
        element("strong", {}, protocol === "http" ? "HTTP" : "gRPC"),
        ` ${rate}, ${buckets.at(-1)[1].toLocaleString("en")} since the start`,
        line(history.slice(-KEPT), `Median latency of ${protocol} over the last looks`),
        element("div", { class: "quiet" }, `half within ${spoken(half)}, 99 % within ${spoken(most)}`),
      ),
    );
  }
  before = { now, seconds };
  if (!blocks.length) blocks.push(element("p", { class: "quiet" }, "No request yet."));
  place.replaceChildren(...blocks);
}
