const SVG = "http://www.w3.org/2000/svg";

function svgElement(parent, name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

class Graph {
  constructor(figure, id, lines, told) {
    Object.assign(this, { figure, lines, told, points: [], from: 0, to: 1, at: -1 });
    this.top = element("span", "top-y");
    this.middle = element("span", "middle-y");
    this.left = element("span", "left-x");
    this.right = element("span", "right-x");
    this.note = element("figcaption", "told", lines.length > 1 ? "" : "Point at the graph for its values");
    this.note.setAttribute("aria-live", "off");
    const svg = document.createElementNS(SVG, "svg");
    for (const [key, value] of Object.entries({ viewBox: "0 0 100 100", preserveAspectRatio: "none", tabindex: 0, role: "img", id, "aria-label": figure.ariaLabel })) svg.setAttribute(key, value);
    figure.removeAttribute("aria-label");
    for (const y of [0, 50, 100]) svgElement(svg, "line", { class: "grid", x1: 0, x2: 100, y1: y, y2: y });
    this.area = svgElement(svg, "polygon", { class: "area", points: "" });
    this.paths = lines.map((_, index) => svgElement(svg, "polyline", { class: `line line-${index}`, points: "" }));
    this.cross = svgElement(svg, "line", { class: "cross", y1: 0, y2: 100 });
    this.svg = svg;
    const zero = element("span", "zero-y", "0");
    figure.append(this.top, this.middle, zero, svg, this.left, this.right, this.note);
    svg.addEventListener("pointermove", (event) => this.pointAt(event.offsetX / svg.clientWidth));
    svg.addEventListener("pointerleave", () => this.tell(-1));
    svg.addEventListener("blur", () => this.tell(-1));
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.points.length) return;
      event.preventDefault();
      const from = this.at < 0 ? this.points.length - (step < 0 ? 0 : 1) : this.at;
      this.note.setAttribute("aria-live", "polite");
      this.tell(Math.min(Math.max(from + step, 0), this.points.length - 1));
    });
    this.clear();
  }

  clear() {
    this.points = [];
    this.draw(0, 1);
  }

  add(time, values) { this.points.push([time, ...values]); }

  draw(from, to) {
    Object.assign(this, { from, to });
    while (this.points.length > 1 && this.points[1][0] < from) this.points.shift();
    const peak = Math.max(1, ...this.points.flatMap(([, ...values]) => values));
    this.max = niceAbove(peak);
    const x = (time) => Math.max(0, (100 * (time - from)) / (to - from)).toFixed(2);
    const y = (value) => (100 - (100 * value) / this.max).toFixed(2);
    this.paths.forEach((path, index) => path.setAttribute("points", this.points.map((point) => `${x(point[0])},${y(point[index + 1])}`).join(" ")));
    const first = this.points[0];
    const last = this.points.at(-1);
    this.area.setAttribute("points", first ? `${x(first[0])},100 ${this.paths[0].getAttribute("points")} ${x(last[0])},100` : "");
    this.top.textContent = short(this.max);
    this.middle.textContent = short(this.max / 2);
    [this.left.textContent, this.right.textContent] = [this.told(from), this.told(to)];
    if (this.at >= this.points.length) this.at = -1;
    this.tell(this.at);
  }

  pointAt(part) {
    const time = this.from + part * (this.to - this.from);
    const distance = ([at]) => Math.abs(at - time);
    let nearest = -1;
    this.points.forEach((point, index) => { if (nearest < 0 || distance(point) < distance(this.points[nearest])) nearest = index; });
    this.tell(nearest);
  }

  tell(index) {
    this.at = index;
    const point = this.points[index];
    const x = point ? Math.max(0, (100 * (point[0] - this.from)) / (this.to - this.from)) : 0;
    for (const [key, value] of Object.entries({ x1: x, x2: x, visibility: point ? "visible" : "hidden" })) this.cross.setAttribute(key, value);
    const values = this.lines.map((name, line) => `${point ? `${count(point[line + 1])} ` : ""}${name}`);
    this.figure.dataset.told = point ? "yes" : "";
    this.note.replaceChildren();
    if (point) this.note.append(`${this.told(point[0])}: `);
    values.forEach((value, line) => {
      if (this.lines.length > 1) this.note.append(element("i", `key key-${line}`), " ");
      this.note.append(line + 1 < values.length ? `${value}, ` : value);
    });
  }
}

