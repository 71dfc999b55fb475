// Draws the report's charts from the JSON in #data. Lines and bars are Chart.js's work where the page carries it, else
// a plain drawing of the same data; the map of address space is always drawn here. Everything is drawn when it comes into
// view, and again when the theme changes, the window is resized or the page is printed.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const Chart = window.Chart;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // --- Numbers ---------------------------------------------------------------------------------------------------------
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const bytes = (value) => {
    let unit = 0;
    while (Math.abs(value) >= 1023.5 && unit + 1 < units.length) {
      value /= 1024;
      unit += 1;
    }
    const digits = unit === 0 || Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2;
    return `${Number(value.toFixed(digits))} ${units[unit]}`;
  };
  const count = (value) => Math.round(value).toLocaleString("en-US");
  const moment = (picture, x) => {
    if (!picture.byTime) return `event ${count(x)}`;
    return picture.end >= 2000 ? `${(x / 1000).toFixed(2)} s` : `${x.toFixed(picture.end < 20 ? 2 : 0)} ms`;
  };
  // Steps of 1, 2 or 5 times a power of ten; of a power of two for bytes.
  const decimalStep = (span, ticks) => {
    const rough = span / Math.max(ticks, 1);
    const power = 10 ** Math.floor(Math.log10(rough || 1));
    return [1, 2, 5, 10].map((f) => f * power).find((step) => step >= rough) || 1;
  };
  const binaryStep = (span, ticks) => 2 ** Math.max(0, Math.ceil(Math.log2(span / Math.max(ticks, 1) || 1)));
  const translucent = (color, alpha) => {
    const n = parseInt(color.slice(1), 16);
    return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
  };

  const gutter = 62;  // Left of every plot, for the labels of its y axis.

  // --- A canvas at the screen's resolution -----------------------------------------------------------------------------
  const font = (size) => `${size}px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`;
  const prepare = (canvas) => {
    const scale = Math.max(window.devicePixelRatio || 1, 2);
    const box = canvas.parentElement;
    const width = box.clientWidth, height = box.clientHeight;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
    g.font = font(11.5);
    return { g, width, height };
  };
  // Labels of the x axis below a plot; returns nothing.
  const drawTimeAxis = (g, picture, left, right, bottom) => {
    const span = picture.end || 1;
    const step = decimalStep(span, (right - left) / 90);
    g.fillStyle = css("--soft");
    g.textBaseline = "top";
    for (let x = 0; x <= span * 1.0001; x += step) {
      const at = left + (x / span) * (right - left);
      g.textAlign = at > right - 20 ? "right" : at < left + 10 ? "left" : "center";
      g.fillText(picture.byTime ? moment(picture, x) : count(x), at, bottom + 6);
    }
  };

  // --- The map of address space ----------------------------------------------------------------------------------------
  const inflate = async (text) => {
    const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };
  // The raster as a picture in today's colours.
  const colour = (map, raster) => {
    const palette = [0, 1, 2, 3, 4].map((c) => parseInt(css(`--c${c}`).slice(1), 16));
    const image = new ImageData(map.columns, map.rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = 0; row < map.rows; row += 1) {
      const to = (map.rows - 1 - row) * map.columns, from = row * map.columns;
      for (let column = 0; column < map.columns; column += 1) {
        const value = raster[from + column];
        if (value === 0) continue;
        const rgb = palette[(value >> 5) - 1];
        const alpha = Math.round(40 + 215 * ((value & 31) / 31));
        pixels[to + column] = (alpha << 24) | ((rgb & 255) << 16) | (rgb & 0xff00) | (rgb >> 16);
      }
    }
    const canvas = document.createElement("canvas");
    canvas.width = map.columns;
    canvas.height = map.rows;
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  };

  class AddressMap {
    constructor(canvas, picture) {
      this.canvas = canvas;
      this.picture = picture;
      this.map = picture.map;
      this.tip = canvas.parentElement.querySelector(".tip");
      this.chosen = -1;
      canvas.addEventListener("pointermove", (event) => this.point(event));
      canvas.addEventListener("pointerdown", (event) => this.point(event));
      canvas.addEventListener("pointerleave", () => this.choose(-1));
      canvas.addEventListener("keydown", (event) => this.key(event));
      canvas.addEventListener("blur", () => this.choose(-1));
    }
    async load() {
      if (!this.raster) this.raster = await inflate(this.map.raster);
    }
    async draw() {
      if (!this.raster) await this.load();
      this.image = colour(this.map, this.raster);
      this.paint();
    }
    paint() {
      const { g, width, height } = prepare(this.canvas);
      const { map, picture } = this;
      const plot = { left: gutter, right: width - 1, top: 1, bottom: height - 24 };
      this.plot = plot;
      const w = plot.right - plot.left, h = plot.bottom - plot.top;
      this.x = (column) => plot.left + (column / map.columns) * w;
      this.y = (row) => plot.bottom - (row / map.rows) * h;
      for (const region of map.regions) {
        const top = this.y(region.row + region.rows), bottom = this.y(region.row);
        g.fillStyle = css("--map");
        g.fillRect(plot.left, top, w, bottom - top);
        g.strokeStyle = css("--grid");
        g.fillStyle = css("--soft");
        g.textAlign = "right";
        g.textBaseline = "middle";
        g.lineWidth = 1;
        const step = binaryStep(region.bytes, (bottom - top) / 44);
        for (let at = 0; at <= region.bytes; at += step) {
          const y = bottom - (at / region.bytes) * (bottom - top);
          if (at > 0) {
            g.beginPath();
            g.moveTo(plot.left, y);
            g.lineTo(plot.right, y);
            g.stroke();
          }
          if (bottom - top >= 14) g.fillText(at === 0 ? "0" : bytes(at), plot.left - 8, Math.min(Math.max(y, 8), plot.bottom - 5));
        }
      }
      // Shrunk, it is averaged, so that nothing is lost; enlarged, its cells keep their colours.
      g.imageSmoothingEnabled = this.canvas.width < map.columns;
      g.imageSmoothingQuality = "high";
      g.drawImage(this.image, plot.left, plot.top, w, h);
      g.strokeStyle = css("--card");
      g.lineWidth = 0.6;
      map.blocks.forEach((block) => {
        const [x0, x1, y0, y1] = [this.x(block[0]), this.x(block[1]), this.y(block[3]), this.y(block[2])];
        if (x1 - x0 > 3 && y1 - y0 > 3) g.strokeRect(x0, y0, x1 - x0, y1 - y0);
      });
      const peak = plot.left + (picture.peakX / (picture.end || 1)) * w;
      g.strokeStyle = css("--text");
      g.lineWidth = 1;
      g.setLineDash([3, 3]);
      g.beginPath();
      g.moveTo(peak, plot.top);
      g.lineTo(peak, plot.bottom);
      g.stroke();
      g.setLineDash([]);
      drawTimeAxis(g, picture, plot.left, plot.right, plot.bottom);
      if (this.chosen >= 0) {
        const block = map.blocks[this.chosen];
        g.strokeStyle = css("--text");
        g.lineWidth = 2;
        g.strokeRect(this.x(block[0]), this.y(block[3]), this.x(block[1]) - this.x(block[0]), this.y(block[2]) - this.y(block[3]));
      }
    }
    point(event) {
      if (!this.plot) return;
      const box = this.canvas.getBoundingClientRect();
      const column = ((event.clientX - box.left - this.plot.left) / (this.plot.right - this.plot.left)) * this.map.columns;
      const row = ((this.plot.bottom - (event.clientY - box.top)) / (this.plot.bottom - this.plot.top)) * this.map.rows;
      this.choose(this.map.blocks.findIndex((b) => column >= b[0] && column <= b[1] && row >= b[2] && row <= b[3]));
    }
    key(event) {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!move || this.map.blocks.length === 0 || !this.plot) return;
      event.preventDefault();
      const n = this.map.blocks.length;
      this.choose((this.chosen + move + n) % n);
    }
    choose(index) {
      if (index === this.chosen || !this.plot) return;
      this.chosen = index;
      this.paint();
      this.tip.hidden = index < 0;
      if (index < 0) return;
      const [x0, x1, , y1, born, died, size, id, stream] = this.map.blocks[index];
      const { picture } = this;
      const end = died >= picture.end ? "the end" : moment(picture, died);
      this.tip.textContent = `${bytes(size)} · id ${id}${stream ? ` · stream ${stream}` : ""}\n${moment(picture, born)} to ${end}`;
      const middle = (this.x(x0) + this.x(x1)) / 2 - this.tip.offsetWidth / 2;
      this.tip.style.left = `${Math.max(4, Math.min(middle, this.canvas.clientWidth - this.tip.offsetWidth - 4))}px`;
      const above = this.y(y1) - this.tip.offsetHeight - 8;
      this.tip.style.top = `${above > 0 ? above : Math.min(this.y(y1) + 8, this.plot.bottom - this.tip.offsetHeight)}px`;
    }
  }

  // --- Lines and bars --------------------------------------------------------------------------------------------------
  // One description for both ways to draw: {kind, labels | picture, sets: [{label, color, fill, dash, y, colors}], format,
  // step, min, log}.
  const highest = (spec) => Math.max(...spec.sets.flatMap((set) => set.y.filter((v) => v !== null)), spec.min || 0);

  const withChart = (canvas, spec) => {
    const lines = spec.kind === "lines";
    const max = highest(spec);
    const labelled = spec.sets.length > 1;
    const x = lines
      ? {
          type: "linear",
          min: 0,
          max: spec.picture.end,
          grid: { display: false },
          ticks: { maxTicksLimit: Math.max(3, Math.floor(canvas.parentElement.clientWidth / 110)), maxRotation: 0, color: css("--soft"), align: "inner",
                   callback: (v) => (spec.picture.byTime ? moment(spec.picture, v) : count(v)) },
        }
      : { grid: { display: false }, ticks: { color: css("--soft"), autoSkip: true, maxRotation: 60 } };
    const y = {
      min: spec.min || 0,
      grid: { color: css("--grid"), drawBorder: false },
      ticks: { color: css("--soft"), callback: spec.format, stepSize: spec.log ? undefined : spec.step(max - (spec.min || 0), 5) },
    };
    // All plots of a column start at the same place, so that times stand above each other.
    y.afterFit = (axis) => { axis.width = gutter; };
    if (spec.log) {
      y.type = "logarithmic";
      y.min = spec.min || 0.5;
      y.ticks.autoSkip = false;
      y.ticks.callback = (v) => (/^[125]/.test(String(v)) && (max < 100 || /^1/.test(String(v))) ? spec.format(v) : null);
    }
    const datasets = spec.sets.map((set) => ({
      label: set.label,
      data: lines ? set.x.map((at, i) => ({ x: at, y: set.y[i] })) : set.y,
      borderColor: set.color,
      backgroundColor: set.colors || (lines ? translucent(set.color, 0.22) : set.color),
      borderWidth: lines ? 1.6 : 0,
      borderDash: set.dash || [],
      borderRadius: lines ? 0 : 3,
      fill: set.fill ? "origin" : false,
      stepped: lines ? "before" : false,
      pointRadius: 0,
      pointHitRadius: 8,
      base: spec.min,
      maxBarThickness: 34,
      categoryPercentage: 0.78,
      barPercentage: 0.92,
    }));
    return new Chart(canvas, {
      type: lines ? "line" : "bar",
      data: lines ? { datasets } : { labels: spec.labels, datasets },
      options: {
        animation: false,
        normalized: true,
        responsive: true,
        maintainAspectRatio: false,
        devicePixelRatio: Math.max(window.devicePixelRatio || 1, 2),
        interaction: { mode: "index", intersect: false },
        scales: { x, y },
        plugins: {
          legend: { display: labelled, align: "start", labels: { color: css("--text"), boxWidth: 12, boxHeight: 12, padding: 14 } },
          tooltip: {
            callbacks: {
              title: (items) => (lines ? moment(spec.picture, items[0].parsed.x) : items[0].label),
              label: (item) => `${item.dataset.label}: ${spec.format(item.parsed.y)}`,
            },
          },
        },
      },
    });
  };

  const byHand = (canvas, spec) => {
    const { g, width, height } = prepare(canvas);
    const lines = spec.kind === "lines";
    const min = spec.min || 0;
    const labelled = spec.sets.length > 1;
    const plot = { left: gutter, right: width - 2, top: labelled ? 26 : 8, bottom: height - (lines ? 24 : 46) };
    const max = highest(spec) * 1.04 || 1;
    const scale = spec.log ? (v) => Math.log10(Math.max(v, 1)) / Math.log10(Math.max(max, 10)) : (v) => (v - min) / (max - min || 1);
    const toY = (v) => plot.bottom - scale(v) * (plot.bottom - plot.top);
    g.textAlign = "right";
    g.textBaseline = "middle";
    const ticks = [];
    if (spec.log) for (let v = 1; v <= max; v *= 10) ticks.push(v);
    else for (let v = min, step = spec.step(max - min, 5); v <= max; v += step) ticks.push(v);
    for (const v of ticks) {
      g.strokeStyle = css("--grid");
      g.beginPath();
      g.moveTo(plot.left, toY(v));
      g.lineTo(plot.right, toY(v));
      g.stroke();
      g.fillStyle = css("--soft");
      g.fillText(spec.format(v), plot.left - 8, toY(v));
    }
    if (lines) {
      const toX = (v) => plot.left + (v / (spec.picture.end || 1)) * (plot.right - plot.left);
      for (const set of spec.sets) {
        g.beginPath();
        set.x.forEach((at, i) => {
          if (i > 0) g.lineTo(toX(at), toY(set.y[i - 1]));
          g.lineTo(toX(at), toY(set.y[i]));
        });
        g.strokeStyle = set.color;
        g.lineWidth = 1.6;
        g.setLineDash(set.dash || []);
        g.stroke();
        g.setLineDash([]);
        if (!set.fill) continue;
        g.lineTo(toX(set.x[set.x.length - 1]), plot.bottom);
        g.lineTo(toX(set.x[0]), plot.bottom);
        g.fillStyle = translucent(set.color, 0.22);
        g.fill();
      }
      drawTimeAxis(g, spec.picture, plot.left, plot.right, plot.bottom);
    } else {
      const slot = (plot.right - plot.left) / Math.max(spec.labels.length, 1);
      const bar = Math.min(34, (slot * 0.78) / spec.sets.length);
      const every = Math.ceil(64 / slot);
      spec.labels.forEach((label, i) => {
        const middle = plot.left + slot * (i + 0.5);
        spec.sets.forEach((set, k) => {
          if (set.y[i] === null) return;
          g.fillStyle = set.colors ? set.colors[i] : set.color;
          const x = middle + (k - spec.sets.length / 2) * bar;
          g.fillRect(x, toY(set.y[i]), bar * 0.92, plot.bottom - toY(set.y[i]));
        });
        if (i % every !== 0) return;
        g.fillStyle = css("--soft");
        g.textAlign = "center";
        g.textBaseline = "top";
        g.fillText(label, middle, plot.bottom + 6);
      });
    }
    if (!labelled) return;
    let x = plot.left;
    g.textAlign = "left";
    g.textBaseline = "middle";
    for (const set of spec.sets) {
      g.fillStyle = set.color;
      g.fillRect(x, 5, 11, 11);
      g.fillStyle = css("--text");
      g.fillText(set.label, x + 16, 11);
      x += g.measureText(set.label).width + 34;
    }
  };

  const chartOf = (canvas, make) => {
    let chart = null;
    return {
      canvas,
      draw() {
        if (chart) chart.destroy();
        chart = Chart ? withChart(canvas, make()) : byHand(canvas, make());
      },
    };
  };

  // --- What is drawn ---------------------------------------------------------------------------------------------------
  const drawings = [];
  const ratios = document.getElementById("ratios");
  if (ratios) {
    drawings.push(chartOf(ratios, () => {
      let ours = 0, theirs = 0;
      const sets = data.ratios.sets.map((set) => ({
        label: set.recorded ? `${set.label} (recorded)` : set.label,
        y: set.values,
        color: set.recorded ? css(`--rec-${theirs++ % 3}`) : ours++ === 0 ? css("--live") : css(`--other-${(ours - 2) % 3}`),
      }));
      const spec = { kind: "bars", labels: data.ratios.traces, sets, min: 1, step: decimalStep, format: (v) => Number(Number(v).toFixed(3)) };
      if (highest(spec) > 6) Object.assign(spec, { log: true });
      return spec;
    }));
  }
  data.pictures.forEach((picture, i) => {
    const { curve, sizes } = picture;
    const classes = () => sizes.classes.map((c) => css(`--c${c}`));
    const x = [...curve.x, picture.end];
    const hold = (values) => [...values, values[values.length - 1]];
    drawings.push(chartOf(document.getElementById(`curve-${i}`), () => ({
      kind: "lines",
      picture,
      step: binaryStep,
      format: bytes,
      sets: [
        { label: "live", color: css("--live"), fill: true, x, y: hold(curve.live) },
        { label: "reserved", color: css("--reserved"), x, y: hold(curve.reserved) },
        { label: "cached", color: css("--cached"), dash: [3, 3], x, y: hold(curve.cached) },
      ],
    })));
    drawings.push(new AddressMap(document.getElementById(`map-${i}`), picture));
    drawings.push(chartOf(document.getElementById(`count-${i}`), () => ({
      kind: "bars", labels: sizes.labels, log: Math.max(...sizes.counts) > 200, step: decimalStep, format: count, min: 0,
      sets: [{ label: "blocks", color: css("--live"), colors: classes(), y: sizes.counts }],
    })));
    drawings.push(chartOf(document.getElementById(`bytes-${i}`), () => ({
      kind: "bars", labels: sizes.labels, step: binaryStep, format: bytes, min: 0,
      sets: [{ label: "live at the peak", color: css("--live"), colors: classes(), y: sizes.peak }],
    })));
  });

  // --- When it is drawn ------------------------------------------------------------------------------------------------
  const drawn = new Set();
  const draw = (drawing) => {
    drawn.add(drawing);
    return drawing.draw();
  };
  const redraw = (all) => Promise.all((all ? drawings : [...drawn]).map(draw));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const drawing = drawings.find((d) => d.canvas === entry.target);
      if (entry.isIntersecting && !drawn.has(drawing)) draw(drawing);
    }
  }, { rootMargin: "600px" });
  drawings.forEach((drawing) => watcher.observe(drawing.canvas));
  // Ready before somebody prints: a page that is about to be printed cannot wait.
  window.addEventListener("load", () => drawings.forEach((drawing) => drawing.load && drawing.load()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(false));
  let waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => redraw(false), 120);
  });
  // Paper is white whatever the screen is.
  window.addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    document.documentElement.dataset.printing = "";
    redraw(true);
  });
  window.addEventListener("afterprint", () => {
    delete document.documentElement.dataset.theme;
    delete document.documentElement.dataset.printing;
    redraw(false);
  });
  // For tests and for printing by programs: everything at once.
  window.drawEverything = () => redraw(true);
})();
