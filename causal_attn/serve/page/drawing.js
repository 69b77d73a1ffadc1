// Elements and pictures. Whatever comes from a model or a person becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function table(heads, rows) {
  const cells = (name, values) =>
    values.map((value) =>
      value instanceof Element && value.tagName === "TD" ? value : element(name, {}, value ?? ""),
    );
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...cells("th", heads))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row)))),
  );
}

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// rows[i][j]: whether token j reaches row i. What lies right of the diagonal is a leak.
export function visibility(rows) {
  const cell = 20, edge = 24;
  const size = rows.length * cell;
  const picture = svg("svg", {
    viewBox: `0 0 ${size + edge} ${size + edge}`,
    width: size + edge,
    role: "img",
    "aria-label": `${rows.length} rows by ${rows.length} tokens`,
  });
  rows.forEach((row, i) => {
    picture.append(svg("text", { x: edge - 5, y: edge + i * cell + 14, "text-anchor": "end" }, `${i}`));
    picture.append(svg("text", { x: edge + i * cell + cell / 2, y: edge - 7, "text-anchor": "middle" }, `${i}`));
    row.forEach((seen, j) => {
      const kind = !seen ? "hidden" : j > i ? "leak" : "seen";
      picture.append(
        svg("rect", { class: kind, x: edge + j * cell + 0.5, y: edge + i * cell + 0.5, width: cell - 1, height: cell - 1 }),
      );
      if (kind === "leak") {
        picture.append(
          svg("text", { x: edge + j * cell + cell / 2, y: edge + i * cell + 14, "text-anchor": "middle" }, "×"),
        );
      }
    });
  });
  return picture;
}

// A line of the last values, the largest at the top; null leaves a gap.
export function line(values, label) {
  const width = 280, height = 44;
  const known = values.filter((value) => value !== null);
  const most = Math.max(...known, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  let points = [];
  const end = () => {
    if (points.length > 1) picture.append(svg("polyline", { points: points.join(" ") }));
    else if (points.length) {
      const [x, y] = points[0].split(",");
      picture.append(svg("circle", { class: "seen", cx: x, cy: y, r: 1.5 }));
    }
    points = [];
  };
  values.forEach((value, index) => {
    if (value === null) end();
    else points.push(`${(index * step).toFixed(1)},${(height - 2 - (value / most) * (height - 6)).toFixed(1)}`);
  });
  end();
  return picture;
}
