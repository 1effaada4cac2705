// SPDX-License-Identifier: Apache-2.0
// Draws the charts of a report: from #data when they come into view, again when the colours change, all of them before printing.
(() => {
  "use strict";
  const charts = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("peerlane-theme"); } catch { /* a page from a file may have no storage */ }
  // Told apart without colour too: each series has its own marker and, when not the main one, its own dash.
  const light = ["#0072b2", "#d55e00", "#007a58", "#a8488a", "#6b6b00", "#4b4bc8", "#8a4b08", "#5b6770", "#b3123f", "#00707a"];
  const dark = ["#56b4e9", "#ff9d4d", "#3ddbab", "#f0a3d2", "#e8e15c", "#a9a9ff", "#d9a066", "#b8c2cc", "#ff8fa8", "#5fe0ea"];
  const symbols = ["circle", "square", "diamond", "triangle-up", "x", "triangle-down", "cross", "star", "pentagon", "hexagon"];
  const dashes = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const units = { us: "µs", bytes: "", ratio: "" };

  const isDark = () => (chosen ? chosen === "dark" : system.matches);
  const sizeText = (v) => {
    for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
      if (v >= factor) return +(v / factor).toPrecision(4) + " " + unit;
    return v + " B";
  };
  const numberText = (v) => (Math.abs(v) >= 1e3 ? Math.round(v).toLocaleString("en") : String(+v.toPrecision(4)));

  function sizeTicks(low, high, wide) {
    const from = Math.floor(Math.log2(low)), to = Math.ceil(Math.log2(high));
    const step = Math.max(1, Math.ceil((to - from) / (wide ? 12 : 5)));
    const out = [];
    for (let e = Math.ceil(from / step) * step; e <= to; e += step) out.push(2 ** e);
    return { tickvals: out, ticktext: out.map((v) => sizeText(v).replace(" ", wide ? " " : "\u00a0")) };
  }

  function logTicks(low, high) {
    const decades = Math.log10(high / low);
    const parts = decades > 4 ? [1] : decades > 1.5 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    const out = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const p of parts) if (p * 10 ** e >= low / 1.3 && p * 10 ** e <= high * 1.3) out.push(p * 10 ** e);
    return { tickvals: out, ticktext: out.map(numberText) };
  }

  const bounds = (values) => values.reduce(([a, b], v) => (v == null ? [a, b] : [Math.min(a, v), Math.max(b, v)]), [Infinity, -Infinity]);
  const titleOf = (text, unit) => text + (units[unit] ?? unit ? `, ${units[unit] ?? unit}` : "");

  function axis(title, unit, log, values, wide) {
    const out = { title: { text: titleOf(title, unit), standoff: 8 }, automargin: true };
    const [low, high] = bounds(values);
    if (log && high > 0 && low > 0) {
      out.type = "log";
      Object.assign(out, { tickmode: "array" }, unit === "bytes" ? sizeTicks(low, high, wide) : logTicks(low, high));
      // Never less than half a decade: noise in a level line should not look like mountains.
      const middle = Math.log10(Math.sqrt(low * high)), half = Math.max(Math.log10(high / low) / 2 + 0.06, 0.25);
      out.range = [middle - half, middle + half];
    } else if (unit === "%" || unit === "ratio") out.rangemode = unit === "%" ? "tozero" : "normal";
    else if (!log && low >= 0) out.rangemode = "tozero";
    return out;
  }

  function theme(layout) {
    const style = getComputedStyle(root);
    const get = (name) => style.getPropertyValue(name).trim();
    const grid = { gridcolor: get("--line"), linecolor: get("--soft"), zerolinecolor: get("--line"), tickcolor: get("--soft") };
    layout.paper_bgcolor = layout.plot_bgcolor = get("--page");
    layout.font = { family: 'system-ui, "DejaVu Sans", sans-serif', size: 13, color: get("--text") };
    Object.assign(layout.xaxis, grid);
    Object.assign(layout.yaxis, grid);
    return layout;
  }

  const base = (width, height) => ({
    width, height, margin: { l: 60, r: 30, t: 10, b: 50 }, hovermode: "closest", showlegend: true, dragmode: false,
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, xanchor: "left" },
  });

  function curves(c, width, height = 400) {
    const colours = isDark() ? dark : light, wide = width > 560, layout = base(width, height);
    const faint = c.kind === "curves" && c.series.some((s) => s.e === "main");
    const traces = c.series.map((s, i) => ({
      type: "scatter", x: s.x, y: s.y, name: s.n, mode: c.kind === "steps" ? "lines" : "lines+markers", visible: s.s ? true : "legendonly",
      line: { color: colours[i % colours.length], width: s.e === "main" ? 3.5 : 1.8,
        dash: s.e === "main" || (!faint && i === 0) ? "solid" : dashes[i % dashes.length] },
      marker: { symbol: symbols[i % symbols.length], size: s.x.length > 80 ? 1 : s.e === "main" ? 7 : 5 },
      hovertemplate: `%{customdata}<extra>${s.n}</extra>`,
      customdata: s.x.map((x, k) => `${c.xu === "bytes" ? sizeText(x) : numberText(x) + " " + (units[c.xu] ?? c.xu)}: ${numberText(s.y[k])} ${units[c.yu] ?? c.yu}`),
    }));
    layout.xaxis = axis(c.x, c.xu, c.xlog, c.series.flatMap((s) => s.x), wide);
    layout.yaxis = axis(c.y, c.yu, c.ylog, c.series.flatMap((s) => s.y).concat(c.level ?? []), wide);
    if (c.kind === "steps" && !c.xlog) layout.xaxis.range = bounds(c.series.flatMap((s) => s.x));
    const soft = getComputedStyle(root).getPropertyValue("--soft").trim();
    layout.shapes = c.marks.map((m) => ({ type: "line", x0: m.x, x1: m.x, yref: "paper", y0: 0, y1: 1, line: { color: soft, width: 1.3, dash: "dot" } }));
    // Numbers at the lines, words in the list below: names side by side would overlap.
    layout.annotations = c.marks.map((m, i) => ({ x: c.xlog ? Math.log10(m.x) : m.x, yref: "paper", y: 1, yanchor: "bottom", text: String(i + 1),
      showarrow: false, font: { size: 11, color: soft } }));
    if (c.marks.length) layout.margin.t = 24;
    if (c.level != null) layout.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: c.level, y1: c.level, line: { color: soft, width: 1.5, dash: "dash" } });
    grow(layout, c.series.map((s) => s.n), width);
    return [traces, layout];
  }

  // Room for the legend: its lines are below the axis, so the picture gets as much higher.
  function grow(layout, names, width) {
    const longest = Math.max(...names.map((n) => n.length)) * 7.5 + 50;
    const columns = Math.max(1, Math.floor((width - 70) / longest)), lines = Math.ceil(names.length / columns);
    layout.height += 20 * lines;
    layout.margin.b = 64 + 20 * lines;
  }

  function bars(c, width) {
    const colours = isDark() ? dark : light, layout = base(width, c.height), wide = width > 560;
    const wrap = (text) => (wide && text.length <= 34 ? text : text.replace(new RegExp(`(.{${wide ? 24 : 14},${wide ? 34 : 20}})\\s`, "g"), "$1<br>"));
    const labels = c.categories.map(wrap);
    const traces = c.series.map((s, i) => ({
      type: "bar", orientation: "h", name: s.n, y: labels, x: s.v, marker: { color: colours[i % colours.length] },
      text: s.v.map((v) => (v == null ? "" : numberText(v))), textposition: "outside", cliponaxis: false,
      hovertemplate: `%{y}: %{x:.4g} ${units[c.xu] ?? c.xu}<extra>${s.n}</extra>`,
    }));
    const values = c.series.flatMap((s) => s.v).filter((v) => v != null);
    layout.xaxis = axis(c.x, c.xu, c.xlog, values, wide);
    if (c.xlog) layout.xaxis.range = [Math.log10(Math.min(...values)) - 0.5, Math.log10(Math.max(...values)) + 0.35];
    else layout.xaxis.range = [0, 1.15 * Math.max(...values, 0)];
    layout.yaxis = { autorange: "reversed", automargin: true };
    layout.barmode = "group";
    layout.bargap = 0.28;
    layout.showlegend = c.series.length > 1;
    if (c.series.length > 1) grow(layout, c.series.map((s) => s.n), width);
    return [traces, layout];
  }

  const drawn = new Set();
  function draw(i, width, height) {
    const place = document.getElementById("c" + i), c = charts[i];
    const [traces, layout] = (c.kind === "bars" ? bars : curves)(c, width ?? Math.max(280, place.clientWidth), height);
    Plotly.react(place, traces, theme(layout), { displayModeBar: false, responsive: false });
    drawn.add(i);
  }
  const again = (width) => drawn.forEach((i) => draw(i, width));

  function applyTheme() {
    root.dataset.theme = isDark() ? "dark" : "light";
    const button = document.getElementById("theme");
    button.hidden = false;
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    again();
  }
  document.getElementById("theme").addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    try { localStorage.setItem("peerlane-theme", chosen); } catch { /* then it lasts as long as the page */ }
    applyTheme();
  });
  system.addEventListener("change", applyTheme);
  applyTheme();

  const watcher = new IntersectionObserver((seen) => {
    for (const entry of seen) if (entry.isIntersecting) { watcher.unobserve(entry.target); draw(+entry.target.id.slice(1)); }
  }, { rootMargin: "600px" });
  charts.forEach((_, i) => watcher.observe(document.getElementById("c" + i)));

  let timer = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;  // phones change the height while they scroll
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(again, 150);
  });
  const paperWidth = 680, paperHeight = 300;  // px on A4 and letter; two charts and their words to a page
  addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    charts.forEach((_, i) => draw(i, paperWidth, paperHeight));
  });
  addEventListener("afterprint", applyTheme);
})();
