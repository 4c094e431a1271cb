"use strict";
// Draws the data of the page: {kind: "run" | "compare", hone, written, runs: [record], title, sweep}. A record is what
// report/page/run_record.h describes. Text of the data is set as textContent only. A page of kind "live" has no runs: its
// server sends the data of one as events; {kind: "waiting", why} while there is nothing to show.

let data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

// Elements

function add(parent, name, classes, text) {
  const element = document.createElement(name);
  if (classes) element.className = classes;
  if (text !== undefined && text !== null) element.textContent = String(text);
  if (parent) parent.append(element);
  return element;
}

function draw(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

// Numbers

const commas = (n) => Math.round(n).toLocaleString("en-US");

function short(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  if (size >= 1000) return commas(value);
  return String(Number(value.toPrecision(digits)));
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (Math.abs(value) >= 1000 && at + 1 < units.length) {
    value /= 1000;
    ++at;
  }
  return `${Number(value.toPrecision(3))} ${units[at]}`;
}

function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${Number(seconds.toPrecision(2))} s`;
  const minutes = Math.round(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (minutes < 60) return `${minutes} min`;
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${days} d ${hours % 24} h`;
}

const percent = (value) => `${Number((100 * value).toPrecision(3))} %`;

function ticksOf(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 2.5, 5, 10].find((step) => step * power >= rough) * power;
  const ticks = [];
  for (let tick = Math.ceil(low / unit - 1e-9) * unit; tick <= high + unit * 1e-9; tick += unit) {
    ticks.push(Math.abs(tick) < unit * 1e-9 ? 0 : tick);
  }
  return ticks;
}

// Charts: each line runs over the steps, with a band for the range of joined points and its last value beside it. The
// pointer and the arrow keys read values out.

const COLOURS = ["--blue", "--orange", "--green", "--violet"];
const DASHES = ["", "7 4", "2 4", "9 3 2 3"];
const redraws = [];

const colourOf = (index) => `var(${COLOURS[index % COLOURS.length]})`;
const dashOf = (index) => DASHES[Math.floor(index / COLOURS.length) % DASHES.length];

function extent(lines, limits, log) {
  let low = Infinity, high = -Infinity;
  for (const line of lines) {
    for (const values of [line.series.y, line.series.lo, line.series.hi]) {
      for (const value of values || []) {
        if (value === null || (log && value <= 0)) continue;
        if (!log || values === line.series.y) low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
  }
  for (const limit of limits) high = Math.max(high, limit.value);
  return [low, high];
}

/** chart: {title, unit, lines: [{name, series, colour, dash, points}], format, zero, limits: [{name, value}], wide} */
function addChart(parent, chart) {
  const lines = chart.lines.filter((line) => line.series && line.series.y.some((value) => value !== null));
  if (lines.length === 0) return;
  const limits = chart.limits || [], format = chart.format || short;
  const figure = add(parent, "figure", chart.wide ? "wide" : "");
  const caption = add(figure, "figcaption");
  add(caption, "h3", "", chart.title);
  if (chart.unit) add(caption, "span", "unit", chart.unit);
  const read = add(caption, "span", "read");
  read.setAttribute("aria-live", "polite");
  const box = add(figure, "div");
  const svg = draw(box, "svg", {role: "img", tabindex: 0});
  if (lines.length > 1 && (chart.key || lines.length > 2)) {
    const key = add(figure, "ul", "key");
    for (const line of lines) {
      const item = add(key, "li");
      const swatch = draw(draw(item, "svg", {width: 26, height: 8, "aria-hidden": "true"}), "line",
                          {x1: 0, x2: 22, y1: 4, y2: 4, stroke: line.colour, "stroke-width": 2.4});
      if (line.dash) swatch.setAttribute("stroke-dasharray", line.dash);
      swatch.parentNode.style.cssText = "display:inline-block;width:26px;margin-right:6px;vertical-align:middle";
      item.append(line.name);
    }
  }
  const summary = lines.map((line) => {
    const known = line.series.y.filter((value) => value !== null);
    return `${line.name}: from ${format(known[0])} to ${format(known[known.length - 1])}, least ` +
      `${format(Math.min(...known))}, most ${format(Math.max(...known))}`;
  }).join("; ");
  svg.setAttribute("aria-label", `${chart.title}${chart.unit ? ", " + chart.unit : ""}, over steps. ${summary}. ` +
                   "Arrow keys read single steps.");

  const height = chart.wide ? 260 : 190, top = 10, bottom = 24;
  let log = false, [low, high] = extent(lines, limits, false);
  if (chart.logIfSteep) {
    const [least, most] = extent(lines, limits, true);
    log = least > 0 && most / least > 50;
    if (log) [low, high] = [least, most];
  }
  if (chart.zero && !log) low = Math.min(low, 0);
  if (low === high) [low, high] = [low - Math.abs(low || 1) * .05, high + Math.abs(high || 1) * .05];
  const scale = log ? Math.log10 : (value) => value;
  const pad = (scale(high) - scale(low)) * .06;
  const from = chart.zero && low === 0 ? 0 : scale(low) - pad, to = scale(high) + pad;
  const firstStep = Math.min(...lines.map((line) => line.series.x[0]));
  let lastStep = Math.max(...lines.map((line) => line.series.x[line.series.x.length - 1]));
  if (lastStep === firstStep) lastStep = firstStep + 1;
  const steps = [...new Set(lines.flatMap((line) => line.series.x))].sort((a, b) => a - b);
  let place = null, cross = null;

  function paint() {
    const width = Math.max(svg.getBoundingClientRect().width, 240);
    const ticks = (log ? [...Array(Math.ceil(to) - Math.floor(from) + 1).keys()].map((i) => Math.floor(from) + i)
                       : ticksOf(from, to, 4)).filter((tick) => tick >= from && tick <= to);
    const tickText = (tick) => format(log ? 10 ** tick : tick);
    const lastValue = (line) => line.series.y.findLast((value) => value !== null);
    const direct = lines.length <= 6;
    const left = 8 + 7 * Math.max(...ticks.map((tick) => tickText(tick).length), 3);
    const labels = direct ? lines.map((line) => lines.length > 1 && !chart.key ? line.name : format(lastValue(line))) : [];
    const right = 12 + Math.min(7.2 * Math.max(...labels.map((label) => label.length), 0), width * .3);
    const x = (step) => left + (step - firstStep) / (lastStep - firstStep) * (width - left - right);
    const y = (value) => top + (1 - (scale(value) - from) / (to - from)) * (height - top - bottom);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    for (const tick of ticks) {
      const at = y(log ? 10 ** tick : tick);
      draw(svg, "line", {class: "gridline", x1: left, x2: width - right, y1: at, y2: at});
      draw(svg, "text", {x: left - 7, y: at + 4, "text-anchor": "end"}, tickText(tick));
    }
    const stepTicks = ticksOf(firstStep, lastStep, Math.max(3, Math.floor((width - left - right) / 95)))
      .filter((tick) => Number.isInteger(tick));
    for (const tick of stepTicks) {
      const text = tick.toLocaleString("en-US"), over = x(tick) + 3.5 * text.length > width;
      draw(svg, "text", {x: over ? width - 2 : x(tick), y: height - 6, "text-anchor": over ? "end" : "middle"}, text);
    }
    draw(svg, "line", {class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom});
    for (const limit of limits) {
      const at = y(limit.value);
      draw(svg, "line", {class: "limit", x1: left, x2: width - right, y1: at, y2: at, stroke: "var(--orange)"});
      draw(svg, "text", {class: "label", x: left + 6, y: at + (at < top + 16 ? 15 : -5)}, limit.name);
    }
    for (const line of lines) {
      const {x: at, y: means, lo, hi} = line.series;
      const parts = [];
      let part = [];
      means.forEach((value, i) => {
        if (value !== null && !(log && value <= 0)) part.push(i);
        else if (part.length) { parts.push(part); part = []; }
      });
      if (part.length) parts.push(part);
      for (const run of parts) {
        const path = (values, order) => order.map((i) => `${x(at[i]).toFixed(1)} ${y(values[i]).toFixed(1)}`).join("L");
        if (lo && lines.length <= 2) {
          const low = lo.map((value) => log ? Math.max(value, 10 ** from) : value);
          draw(svg, "path", {class: "band", fill: line.colour, d: `M${path(hi, run)}L${path(low, [...run].reverse())}Z`});
        }
        const drawn = draw(svg, "path", {class: "line", stroke: line.colour, d: `M${path(means, run)}`});
        if (line.dash) drawn.setAttribute("stroke-dasharray", line.dash);
        if (line.points || run.length === 1) {
          for (const i of run) draw(svg, "circle", {cx: x(at[i]), cy: y(means[i]), r: 3.2, fill: line.colour});
        }
      }
    }
    if (direct) {
      const places = lines.map((line, i) => ({line, text: labels[i], at: y(lastValue(line))})).sort((a, b) => a.at - b.at);
      for (let i = 1; i < places.length; ++i) places[i].at = Math.max(places[i].at, places[i - 1].at + 14);
      const over = places.length ? places[places.length - 1].at - (height - bottom) : 0;
      const most = Math.floor((right - 10) / 6.6);
      for (const {line, text, at} of places) {
        const shown = text.length > most ? text.slice(0, most - 1) + "…" : text;
        const label = draw(svg, "text", {class: "label", x: width - right + 6, y: at + 4 - Math.max(over, 0)}, shown);
        label.style.fill = line.colour;
      }
    }
    cross = draw(svg, "g", {});
    if (place !== null) show(place);

    svg.onpointermove = (event) => {
      const share = (event.clientX - svg.getBoundingClientRect().left - left) / (width - left - right);
      show(nearest(steps, firstStep + share * (lastStep - firstStep)));
    };
    function show(index) {
      place = index;
      const step = steps[index];
      cross.replaceChildren();
      draw(cross, "line", {class: "cross", x1: x(step), x2: x(step), y1: top, y2: height - bottom});
      read.replaceChildren("step ", step.toLocaleString("en-US"));
      for (const line of lines) {
        const i = nearest(line.series.x, step);
        const value = line.series.y[i];
        if (value === null || (!line.points && line.series.x[i] !== step && lines.length === 1)) continue;
        draw(cross, "circle", {cx: x(line.series.x[i]), cy: y(value), r: 4, fill: line.colour});
        if (lines.length > 6) continue;
        read.append(lines.length > 1 ? ` · ${line.name} ` : " · ");
        add(read, "b", "", format(value));
        const {lo, hi} = line.series;
        if (lo && lo[i] !== hi[i]) read.append(` (${format(lo[i])} to ${format(hi[i])})`);
      }
    }
    svg.onkeydown = (event) => {
      const move = {ArrowLeft: -1, ArrowRight: 1, PageUp: -25, PageDown: 25, Home: -Infinity, End: Infinity}[event.key];
      if (move === undefined) return;
      event.preventDefault();
      show(Math.min(Math.max((place === null ? steps.length - 1 : place) + move, 0), steps.length - 1));
    };
  }
  svg.onpointerleave = svg.onblur = () => {
    place = null;
    read.replaceChildren();
    if (cross) cross.replaceChildren();
  };
  redraws.push(paint);
}

function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - sorted[low - 1] < sorted[low] - value ? low - 1 : low;
}

// Sections

const main = document.getElementById("main");

function section(id, title, lead) {
  const made = add(main, "section");
  made.id = id;
  made.setAttribute("aria-labelledby", id + "-title");
  add(made, "h2", "", title).id = id + "-title";
  if (lead) add(made, "p", "lead", lead);
  const link = add(document.getElementById("nav"), "a", "", title);
  link.href = "#" + id;
  return made;
}

const get = (object, ...keys) => keys.reduce((value, key) => value === null || value === undefined ? undefined : value[key], object);

function tiles(parent, list) {
  const grid = add(parent, "dl", "tiles");
  for (const [name, value, more] of list) {
    if (value === undefined || value === null) continue;
    const tile = add(grid, "div", "tile");
    add(tile, "dt", "", name);
    const shown = add(tile, "dd", "", value);
    if (more) add(shown, "div", "more", more);
  }
}

function table(parent, columns, rows, best) {
  const made = add(add(parent, "div", "table"), "table");
  const head = add(add(made, "thead"), "tr");
  for (const column of columns) add(head, "th", column.number ? "n" : "", column.name).scope = "col";
  const body = add(made, "tbody");
  rows.forEach((row, index) => {
    const line = add(body, "tr", index === best ? "best" : "");
    row.forEach((cell, i) => {
      const box = add(line, "td", columns[i].number ? "n" : "long");
      if (cell instanceof Node) box.append(cell);
      else box.textContent = cell === undefined || cell === null ? "–" : String(cell);
    });
  });
  return made;
}

const configLines = (run) => {
  const groups = [];
  for (const line of (run.config || "").split("\n")) {
    if (line.startsWith("# ")) groups.push({name: line.slice(2), lines: []});
    else if (line.trim() && groups.length) groups[groups.length - 1].lines.push(line);
  }
  return groups.filter((group) => group.lines.length);
};

function head(run) {
  const top = document.getElementById("head"), info = run.info || {};
  document.title = `${run.name} – hone`;
  add(top, "h1", "", run.name);
  const sub = add(top, "p", "sub");
  add(sub, "span", "state " + run.state.kind, run.state.text);
  const facts = [get(info, "model", "model_name_or_path"), get(info, "metadata", "finetuning_type"),
                 get(info, "hardware", "device") || get(run.plan, "device"), get(info, "metadata", "end_time")];
  for (const fact of facts) if (fact) sub.append(" · ", String(fact));
  const loss = run.series.loss, {eval_loss: best, memory, tokens_per_second: rate} = run.summary, total = run.total_steps;
  tiles(top, [
    ["Steps", commas(run.step), total > 0 ? `of ${commas(total)}` : ""],
    ["Loss", loss && short(run.summary.loss), loss && `from ${short(loss.y.find((value) => value !== null))}`],
    ["Best evaluation", best && short(best), best && `at step ${commas(run.summary.eval_step)}`],
    ["Rate", rate && short(rate, 3), "tokens/s"],
    ["Memory", memory && bytes(memory), get(run.plan, "memory", "planned") && `planned ${bytes(run.plan.memory.planned)}`],
    run.state.kind === "open" && run.summary.seconds_left > 0
      ? ["Time left", duration(run.summary.seconds_left), "as of the last step"]
      : ["Time", run.summary.seconds && duration(run.summary.seconds), "of the last start"],
    ["Tokens", get(info, "dataset", "num_tokens") && commas(info.dataset.num_tokens),
      get(info, "dataset", "num_tokens") && `${percent(info.dataset.num_supervised_tokens / info.dataset.num_tokens)} with loss`],
  ]);
}

function reductionNote(runs) {
  const reduced = runs.some((run) => Object.values(run.series).some((series) => series.lo));
  return reduced ? " Neighbouring steps are joined: a line is their mean, the band from least to most; the first and the " +
    "last step are exact. metrics.jsonl has every step." : "";
}

function training(run) {
  const series = run.series;
  if (!series.loss && !series.eval_loss) return;
  const part = section("training", "Training", "Hover, or focus a chart and use the arrow keys, to read a step." + reductionNote([run]));
  const large = add(part, "div", "charts"), charts = add(part, "div", "charts");
  const line = (name, key, index, points) => ({name, series: series[key], colour: colourOf(index), points});
  addChart(large, {title: "Loss", unit: "nats a token", wide: true,
                   lines: [line("training", "loss", 0), line("evaluation", "eval_loss", 1, true)]});
  addChart(charts, {title: "Learning rate", lines: [line("learning rate", "learning_rate", 0)], zero: true});
  addChart(charts, {title: "Gradient norm", unit: "before clipping", lines: [line("gradient norm", "grad_norm", 0)], logIfSteep: true});
  addChart(charts, {title: "Accuracy", unit: "of the next token",
                    format: percent, lines: [line("training", "mean_token_accuracy", 0),
                                             line("evaluation", "eval_mean_token_accuracy", 1, true)]});
  addChart(charts, {title: "Entropy", unit: "of predictions, nats", lines: [line("entropy", "entropy", 0)]});
  const sets = Object.keys(series).filter((key) => key.startsWith("loss/"));
  addChart(charts, {title: "Loss by data set", unit: "nats a token", key: true,
                    lines: sets.map((key, i) => ({...line(key.slice(5), key, i), dash: dashOf(i)}))});
  const evaluated = Object.keys(series).filter((key) => /^eval_.+_loss$/.test(key));
  addChart(charts, {title: "Evaluation loss by data set", unit: "nats a token", key: true,
                    lines: evaluated.map((key, i) => ({...line(key.slice(5, -5), key, i, true), dash: dashOf(i)}))});
}

function speed(run) {
  const series = run.series;
  if (!series.tokens_per_second && !series["memory/max_alloc"]) return;
  const part = section("speed", "Speed and memory");
  const charts = add(part, "div", "charts");
  const one = (name, key) => [{name, series: series[key], colour: colourOf(0)}];
  addChart(charts, {title: "Rate", unit: "tokens a second", zero: true, lines: one("tokens a second", "tokens_per_second")});
  const planned = get(run.plan, "memory", "planned");
  addChart(charts, {title: "Memory in use", unit: "of the device", zero: true, format: bytes, lines: one("memory", "memory/max_alloc"),
                    limits: planned ? [{name: `planned for tensors: ${bytes(planned)}`, value: planned}] : []});
  addChart(charts, {title: "Waiting for data", unit: "seconds a step", zero: true, lines: one("waiting", "data/wait")});
  addChart(charts, {title: "Model FLOP/s", unit: "of the device's peak", zero: true, format: percent, lines: one("mfu", "mfu")});
  addChart(charts, {title: "GPU in use", unit: "%", zero: true, lines: one("GPU", "gpu/utilization")});
  addChart(charts, {title: "GPU power", unit: "W", zero: true, lines: one("power", "gpu/power")});
  addChart(charts, {title: "GPU temperature", unit: "°C", lines: one("temperature", "gpu/temperature")});
  const rows = get(run.plan, "memory", "rows");
  if (!rows || !rows.length) return;
  const panel = add(charts, "div", "panel"), sum = rows.reduce((total, row) => total + row.bytes, 0);
  add(panel, "h3", "", "Memory as planned");
  const available = run.plan.memory.available;
  add(panel, "p", "hint", `${bytes(sum)}${available > 0 ? ` of ${bytes(available)} available` : ""}`);
  table(panel, [{name: "For"}, {name: "", bar: true}, {name: "Bytes", number: true}, {name: "As"}], rows.map((row) => {
    const meter = add(null, "div", "meter barcell"), bar = add(meter, "i");
    bar.style.width = `${100 * row.bytes / sum}%`;
    return [row.what, meter, bytes(row.bytes), row.note];
  }));
}

// Experts

function unpack(text) {
  const binary = atob(text), cells = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; ++i) cells[i] = binary.charCodeAt(i);
  return cells;
}

const isDark = () => document.documentElement.dataset.theme === "dark" ||
  (document.documentElement.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);

/** Load over the mean as a colour: blue below it, orange above; an expert without tokens has the strongest contrast. */
function loadColour(load, dark) {
  if (load === 0) return dark ? [255, 255, 255] : [20, 20, 24];
  const way = Math.max(-1, Math.min(1, Math.log2(load) / 3));
  const neutral = dark ? [44, 50, 56] : [240, 238, 234], end = way < 0 ? (dark ? [98, 168, 224] : [22, 92, 150])
                                                                     : (dark ? [245, 160, 70] : [190, 88, 8]);
  const share = Math.abs(way) ** .8;
  return neutral.map((value, i) => Math.round(value + (end[i] - value) * share));
}

const loadText = (byte) => byte === 0 ? "no token" : byte === 255 ? "8 times the mean or more" : `${(byte / 32).toPrecision(2)} times the mean`;

const kept = {layer: "-1", step: null};  // choices of the reader that stay when the page is drawn again

function experts(run) {
  const load = run.load, series = run.series;
  const has = ["router/aux_loss", "router/load_max_over_mean", "router/entropy"].some((key) => series[key]);
  if (!load && !has) return;
  const part = section("experts", "Experts", "How many tokens each expert gets, over the mean of its layer.");
  if (load) {
    const {steps, layers, experts: count} = load, cells = unpack(load.bytes);
    const panel = add(part, "div", "panel"), controls = add(panel, "div", "controls");
    const at = (time, layer, expert) => cells[(time * layers + layer) * count + expert];
    const choose = add(add(controls, "label", "", "Show"), "select");
    add(choose, "option", "", "all layers at a step").value = "-1";
    for (let layer = 0; layer < layers; ++layer) add(choose, "option", "", `layer ${layer} over time`).value = String(layer);
    const timeLabel = add(controls, "label", "", "Step"), time = add(timeLabel, "input");
    const stepText = add(timeLabel, "output");
    const keptStep = kept.step === null ? -1 : steps.indexOf(kept.step);
    Object.assign(time, {type: "range", min: 0, max: steps.length - 1, step: 1, value: keptStep >= 0 ? keptStep : steps.length - 1});
    if (Number(kept.layer) < layers) choose.value = kept.layer;
    time.setAttribute("aria-label", "Step of the map");
    const read = add(controls, "span", "read");
    read.setAttribute("aria-live", "polite");
    const canvas = add(panel, "canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    let shown = {rows: 0, value: null, name: null}, spot = null;
    const paint = () => {
      const layer = Number(choose.value), dark = isDark();
      timeLabel.hidden = layer >= 0 || steps.length < 2;
      timeLabel.style.display = timeLabel.hidden ? "none" : "";
      const step = Number(time.value);
      stepText.textContent = steps[step].toLocaleString("en-US");
      time.setAttribute("aria-valuetext", `step ${steps[step]}`);
      shown = layer < 0
        ? {rows: layers, value: (row, expert) => at(step, row, expert), name: (row) => `layer ${row}`}
        : {rows: steps.length, value: (row, expert) => at(row, layer, expert), name: (row) => `step ${commas(steps[row])}`};
      canvas.setAttribute("aria-label", (layer < 0 ? `Load of ${count} experts in ${layers} layers at step ${steps[step]}`
        : `Load of ${count} experts of layer ${layer} at ${steps.length} steps`) + ". Arrow keys read single experts.");
      canvas.width = count;
      canvas.height = shown.rows;
      const width = canvas.getBoundingClientRect().width || 600;
      canvas.style.height = `${Math.min(Math.max(shown.rows * Math.min(width / count, 22), 90), 520)}px`;
      const context = canvas.getContext("2d"), image = context.createImageData(count, shown.rows);
      for (let row = 0; row < shown.rows; ++row) {
        for (let expert = 0; expert < count; ++expert) {
          const pixel = 4 * (row * count + expert);
          image.data.set([...loadColour(shown.value(row, expert) / 32, dark), 255], pixel);
        }
      }
      context.putImageData(image, 0, 0);
      legend();
    };
    const say = (row, expert) => {
      spot = [row, expert];
      read.replaceChildren(`${shown.name(row)}, expert ${expert}: `);
      add(read, "b", "", loadText(shown.value(row, expert)));
    };
    canvas.onpointermove = (event) => {
      const box = canvas.getBoundingClientRect();
      say(Math.min(Math.max(Math.floor((event.clientY - box.top) / box.height * shown.rows), 0), shown.rows - 1),
          Math.min(Math.max(Math.floor((event.clientX - box.left) / box.width * count), 0), count - 1));
    };
    canvas.onpointerleave = canvas.onblur = () => { read.textContent = ""; };
    canvas.onkeydown = (event) => {
      const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
      if (!move) return;
      event.preventDefault();
      const [row, expert] = spot || [0, 0];
      say(Math.min(Math.max(row + (spot ? move[0] : 0), 0), shown.rows - 1), Math.min(Math.max(expert + (spot ? move[1] : 0), 0), count - 1));
    };
    choose.onchange = time.oninput = () => {
      spot = null;
      kept.layer = choose.value;
      kept.step = Number(time.value) === steps.length - 1 ? null : steps[Number(time.value)];
      paint();
    };
    const scale = add(panel, "div", "legend");
    const legend = () => {
      scale.replaceChildren("load over the mean ");
      for (const [value, name] of [[0, "no token"], [1 / 8, "⅛"], [1 / 4, "¼"], [1 / 2, "½"], [1, "1"], [2, "2"], [4, "4"], [8, "8 and more"]]) {
        const item = add(scale, "span"), box = add(item, "i");
        box.style.background = `rgb(${loadColour(value, isDark()).join(",")})`;
        item.append(" ", name);
      }
    };
    redraws.push(paint);
    add(panel, "p", "hint", `Columns are the ${count} experts; rows from top to bottom are ${layers === 1 ? "the layer" : `layers 0 to ${layers - 1}`}, or steps.`);
    const names = add(panel, "div", "names"), cell = ([layer, expert]) => `layer ${layer} expert ${expert}`;
    const more = (all, named) => all > named ? `, and ${commas(all - named)} more` : "";
    const dead = add(names, "p"), hot = add(names, "p");
    add(dead, "b", "", `Dead at the end: ${load.dead_count}`);
    dead.append(load.dead_count ? " – " + load.dead.slice(0, 16).map(cell).join(", ") + more(load.dead_count, Math.min(load.dead.length, 16)) : " (every expert gets tokens)");
    add(hot, "b", "", `Hot at the end: ${load.hot_count}`);
    hot.append(load.hot_count ? " – " + load.hot.slice(0, 8).map((name) => `${cell(name)} ${short(name[2], 3)}×`).join(", ") + more(load.hot_count, Math.min(load.hot.length, 8))
                              : " (none has twice the mean load)");
  }
  const charts = add(part, "div", "charts");
  const one = (name, key) => [{name, series: series[key], colour: colourOf(0)}];
  addChart(charts, {title: "Busiest expert", unit: "load over the mean", lines: one("busiest", "router/load_max_over_mean")});
  addChart(charts, {title: "Router entropy", unit: "nats", lines: one("entropy", "router/entropy")});
  addChart(charts, {title: "Experts without a token", unit: "in a step, all layers", zero: true, lines: one("dead", "router/dead_experts")});
  addChart(charts, {title: "Load-balancing loss", unit: "before its coefficient", lines: one("loss", "router/aux_loss")});
}

function answers(run) {
  if (!run.answers || !run.answers.length) return;
  const part = section("answers", "Answers", "What the model says to prompts of the evaluation data: first, and last.");
  const list = add(part, "div", "answers");
  for (const answer of run.answers) {
    const panel = add(list, "article", "panel answer");
    add(panel, "h3", "", "Prompt");
    add(panel, "p", "prompt", answer.prompt);
    const pair = add(panel, "div", "pair");
    const show = (title, text, classes) => {
      const box = add(pair, "div", classes);
      add(box, "h3", "", title);
      add(box, "p", "", text || "(empty)");
    };
    const named = (made) => `step ${commas(made.step)}${made.finished ? "" : ", cut at the limit"}`;
    show(`Before: ${named(answer.first)}`, answer.first.text, "before");
    if (answer.last) show(`After: ${named(answer.last)}`, answer.last.text, "after");
    show("Expected", answer.expected, "expected");
  }
}

function dataReport(run) {
  const sets = get(run.plan, "data", "sets");
  if (!sets || !sets.length) return;
  const part = section("data", "Data");
  const panel = add(part, "div", "panel");
  table(panel, [{name: "Data set"}, {name: "Use"}, {name: "Format"}, {name: "Rows", number: true}, {name: "Samples", number: true},
                {name: "Tokens", number: true}, {name: "With loss", number: true}, {name: "Median", number: true},
                {name: "p99", number: true}, {name: "Longest", number: true}, {name: "Not used", number: true}],
        sets.map((set) => [set.name, set.split === "train" ? "training" : "evaluation", set.format, commas(set.rows), commas(set.samples),
                           commas(set.tokens), set.tokens ? percent(set.supervised / set.tokens) : "–", commas(set.median),
                           commas(set.p99), commas(set.longest), commas(set.dropped + set.unsupervised)]));
  const repeats = (kind, text) => {
    const found = get(run.plan, "data", kind);
    if (!found) return;
    const line = add(panel, "p", "hint", found.repeated ? `${commas(found.repeated)} of ${commas(found.rows)} ${text}` : "");
    if (!found.repeated) line.remove();
    else line.append((found.examples || []).map((pair) => `; ${pair[0]} as ${pair[1]}`).join(""));
  };
  repeats("duplicates", "training rows repeat an earlier one");
  repeats("leaks", "evaluation rows are in the training data");
  const charts = add(part, "div", "charts");
  for (const set of sets) {
    if (set.split !== "train" || !set.histogram || !set.histogram.length) continue;
    const box = add(charts, "div", "panel"), most = Math.max(...set.histogram.map((bin) => bin[2]));
    add(box, "h3", "", `Lengths of ${set.name}, in tokens`);
    table(box, [{name: "Tokens", number: true}, {name: ""}, {name: "Rows", number: true}], set.histogram.map(([from, to, rows]) => {
      const meter = add(null, "div", "meter barcell"), bar = add(meter, "i");
      bar.style.width = `${100 * rows / most}%`;
      return [from === to ? commas(from) : `${commas(from)}–${commas(to)}`, meter, commas(rows)];
    }));
  }
}

function warnings(run) {
  const list = run.warnings || [];
  if (!list.length && !run.notes.length) return;
  const part = section("warnings", "Warnings");
  const panel = add(part, "div", "panel"), items = add(panel, "ul", "warnings");
  for (const note of run.notes) {
    const item = add(items, "li");
    add(item, "span", "level", "files");
    add(item, "span", "text", note);
  }
  for (const warning of [...list].reverse()) {
    const item = add(items, "li", warning.level);
    add(item, "span", "level", warning.level);
    const text = add(item, "span", "text", warning.text);
    add(text, "small", "", `  ${warning.times > 1 ? `${warning.times} times, last ` : ""}${warning.last}`);
  }
}

function settings(run) {
  const groups = configLines(run);
  if (groups.length) {
    const part = section("settings", "Settings", "config.resolved.yaml: every key with its value. It runs again as it is.");
    const panel = add(part, "div", "panel");
    for (const group of groups) {
      const box = add(panel, "details"), title = add(box, "summary", "", group.name + " ");
      add(title, "small", "", `${group.lines.length} lines`);
      add(box, "pre", "", group.lines.join("\n")).style.cssText = "margin:8px 0;overflow-x:auto";
    }
  }
  if (!run.commands || !run.commands.length) return;
  const part = section("commands", "Commands"), panel = add(part, "div", "panel");
  for (const command of run.commands) {
    const row = add(panel, "div", "command");
    add(row, "span", "", command.what);
    add(row, "code", "", command.line);
    const copy = add(row, "button", "", "Copy");
    copy.type = "button";
    copy.setAttribute("aria-label", `Copy: ${command.what}`);
    copy.onclick = () => {
      const said = (text) => {
        copy.textContent = text;
        setTimeout(() => { copy.textContent = "Copy"; }, 1500);
      };
      const selected = () => {
        getSelection().selectAllChildren(row.querySelector("code"));
        said("Selected");
      };
      if (navigator.clipboard) navigator.clipboard.writeText(command.line).then(() => said("Copied"), selected);
      else selected();
    };
  }
}

// Several runs

function compare(runs) {
  const top = document.getElementById("head");
  const title = data.title || `${runs.length} runs`;
  document.title = `${title} – hone`;
  add(top, "h1", "", title);
  const evaluated = runs.filter((run) => run.summary.eval_loss !== undefined);
  const best = evaluated.length ? runs.indexOf(evaluated.reduce((a, b) => b.summary.eval_loss < a.summary.eval_loss ? b : a)) : -1;
  add(top, "p", "sub", best >= 0 ? `Best evaluation: ${runs[best].label}, ${short(runs[best].summary.eval_loss)} at step ${commas(runs[best].summary.eval_step)}` : "No run has been evaluated.");
  const part = section("table", "Results");
  table(add(part, "div", "panel"),
        [{name: "Run"}, {name: "State"}, {name: "Step", number: true}, {name: "Loss", number: true}, {name: "Best evaluation", number: true},
         {name: "at step", number: true}, {name: "Tokens/s", number: true}, {name: "Memory", number: true}, {name: "Time", number: true}],
        runs.map((run, i) => {
          const name = add(null, "span"), mark = draw(draw(name, "svg", {width: 26, height: 8, "aria-hidden": "true"}), "line",
                                                     {x1: 0, x2: 22, y1: 4, y2: 4, stroke: colourOf(i), "stroke-width": 3});
          if (dashOf(i)) mark.setAttribute("stroke-dasharray", dashOf(i));
          mark.parentNode.style.cssText = "display:inline-block;width:26px;margin-right:6px;vertical-align:middle";
          name.append(run.label);
          const {loss, eval_loss: found, eval_step: at, tokens_per_second: rate, memory, seconds} = run.summary;
          return [name, run.state.text, commas(run.step), short(loss), short(found), at && commas(at), rate && short(rate, 3),
                  memory && bytes(memory), seconds && duration(seconds)];
        }), best);
  if (data.sweep && data.sweep.failed && data.sweep.failed.length) {
    const failed = section("failed", "Without a result");
    table(add(failed, "div", "panel"), [{name: "Run"}, {name: "Why"}], data.sweep.failed.map((run) => [run.name, run.why]));
  }
  const curves = section("curves", "Curves", "Hover, or focus a chart and use the arrow keys, to read a step." + reductionNote(runs));
  const large = add(curves, "div", "charts"), charts = add(curves, "div", "charts");
  const lines = (key, points) => runs.map((run, i) => ({name: run.label, series: run.series[key], colour: colourOf(i), dash: dashOf(i), points}));
  addChart(large, {title: "Evaluation loss", unit: "nats a token", wide: true, key: true, lines: lines("eval_loss", true)});
  addChart(large, {title: "Loss", unit: "nats a token", wide: true, key: true, lines: lines("loss")});
  addChart(charts, {title: "Learning rate", zero: true, key: true, lines: lines("learning_rate")});
  addChart(charts, {title: "Gradient norm", key: true, logIfSteep: true, lines: lines("grad_norm")});
  addChart(charts, {title: "Rate", unit: "tokens a second", zero: true, key: true, lines: lines("tokens_per_second")});
  addChart(charts, {title: "Memory in use", unit: "of the device", zero: true, key: true, format: bytes, lines: lines("memory/max_alloc")});
  addChart(charts, {title: "Busiest expert", unit: "load over the mean", key: true, lines: lines("router/load_max_over_mean")});
  const values = runs.map((run) => new Map(configLines(run).flatMap((group) => group.lines)
    .map((line) => [line.split(":")[0].trim(), line.slice(line.indexOf(":") + 1).trim()])));
  const keys = [...new Set(values.flatMap((map) => [...map.keys()]))]
    .filter((key) => !["output_dir", "run_name", "logging_dir"].includes(key) && new Set(values.map((map) => map.get(key))).size > 1);
  if (keys.length) {
    const settingsPart = section("differences", "Settings that differ");
    table(add(settingsPart, "div", "panel"), [{name: "Key"}, ...runs.map((run) => ({name: run.label}))],
          keys.map((key) => [key, ...values.map((map) => map.get(key))]));
  }
  const notes = runs.flatMap((run) => run.notes.map((note) => `${run.label}: ${note}`));
  if (notes.length) {
    const panel = add(section("notes", "Files"), "div", "panel");
    for (const note of notes) add(panel, "p", "note", note);
  }
}

// Theme

const themes = ["system", "light", "dark"], themeButton = document.getElementById("theme");
let theme = "system";
const setTheme = (name) => {
  theme = name;
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  themeButton.textContent = `Theme: ${name}`;
  try { localStorage.setItem("hone-theme", name); } catch { /* a page of a file may have no storage */ }
};
try { theme = localStorage.getItem("hone-theme") || theme; } catch { /* as above */ }
if (["#light", "#dark"].includes(location.hash)) theme = location.hash.slice(1);
setTheme(themes.includes(theme) ? theme : "system");
const redraw = () => redraws.forEach((paint) => paint());
themeButton.onclick = () => {
  setTheme(themes[(themes.indexOf(theme) + 1) % themes.length]);
  redraw();
};

// The page

function show() {
  redraws.length = 0;
  for (const part of [document.getElementById("nav"), document.getElementById("head"), main]) part.replaceChildren();
  if (data.kind === "run") {
    const run = data.runs[0];
    head(run);
    training(run);
    experts(run);
    answers(run);
    speed(run);
    dataReport(run);
    warnings(run);
    settings(run);
  } else if (data.kind === "compare") {
    const names = data.runs.map((run) => run.name);
    for (const run of data.runs) run.label = names.filter((name) => name === run.name).length > 1 ? run.folder : run.name;
    compare(data.runs);
  } else {
    add(document.getElementById("head"), "p", "sub", data.why || "The data of the run are read.");
  }
  redraw();
}

const foot = document.getElementById("foot");
if (data.kind === "live") {
  const status = document.getElementById("live"), closed = EventSource.CLOSED;
  foot.textContent = `Served by hone ${data.hone}. This page asks its own server for nothing but new data.`;
  let source = null;
  const listen = () => {
    source = new EventSource("events");
    source.onmessage = (event) => {
      data = JSON.parse(event.data);
      const at = scrollY, opened = [...document.querySelectorAll("details[open] summary")].map((title) => title.textContent);
      show();
      for (const title of document.querySelectorAll("details summary")) title.parentNode.open = opened.includes(title.textContent);
      scrollTo({top: at, behavior: "instant"});
      status.textContent = `Live, ${new Date().toLocaleTimeString()}`;
    };
    // The server ends each answer, after which the browser asks again; it does not where nothing listens.
    source.onerror = () => {
      if (source.readyState !== closed) return;
      status.textContent = "No answer; trying again";
      setTimeout(listen, 3000);
    };
  };
  show();
  listen();
} else {
  show();
  foot.textContent = `Written by hone ${data.hone} on ${data.written}. This page asks for nothing outside it.`;
}
let waiting = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(redraw);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const box of closed) box.open = true;
});
addEventListener("afterprint", () => closed.forEach((box) => { box.open = false; }));
