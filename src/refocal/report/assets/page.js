(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const { left, top: above, size, stripTop, stripBottom } = data.frame;
  const xOf = (p) => (left + size * p).toFixed(1);
  const yOf = (p) => (above + size * (1 - p)).toFixed(1);
  const percent = (p, digits = 1) => Number.isFinite(p) ? `${(100 * p).toFixed(digits)}%` : "–";
  const countText = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 1 });

  function decimal(value) {
    if (Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return "∞";
    return 0 < value && value < 5e-5 ? value.toExponential(1) : value.toFixed(4);
  }

  function shortCount(n) {
    for (const [limit, divisor, unit] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
      if (n >= limit) return `${Number((n / divisor).toPrecision(3))}${unit}`;
    }
    return n.toFixed(0);
  }

  // Diagrams ---------------------------------------------------------------------------------------------------------

  function shape(tag, attributes, title) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (title) element.append(shape("title", {}));
    if (title) element.firstChild.textContent = title;
    return element;
  }

  function describe({ count, confidence, accuracy, low, high }) {
    const total = count.reduce((sum, n) => sum + n, 0);
    const mean = (values) => values.reduce((sum, value, i) => sum + count[i] * value, 0) / total;
    const outside = accuracy.filter((value, i) => value < low[i] || value > high[i]).length;
    return `${countText(total)} samples in ${count.length} ${count.length === 1 ? "bin" : "bins"}, ${outside} outside ` +
      `the consistency band. Mean predicted probability ${percent(mean(confidence))}, observed frequency ` +
      `${percent(mean(accuracy))}.`;
  }

  function drawDiagram(svg, diagram) {
    const { count, confidence, accuracy, low, high } = diagram;
    const limits = confidence.map((p, i) => [p, low[i]]);
    limits.push(...confidence.map((p, i) => [p, high[i]]).reverse());
    const corners = limits.map(([p, limit]) => `${xOf(p)} ${yOf(limit)}`);
    svg.querySelector(".band").setAttribute("d", corners.length ? `M${corners.join("L")}Z` : "");
    const most = Math.max(...count, 0);
    const dots = count.flatMap((n, i) => {
      const x = xOf(confidence[i]), y = yOf(accuracy[i]);
      const inside = low[i] <= accuracy[i] && accuracy[i] <= high[i];
      const text = `${countText(n)} samples: predicted ${percent(confidence[i])}, observed ${percent(accuracy[i])}; ` +
        `calibrated: ${percent(low[i])} to ${percent(high[i])}`;
      return [
        shape("line", { class: "gap", x1: x, x2: x, y1: yOf(confidence[i]), y2: y }),
        shape("circle", { class: inside ? "inside" : "outside", cx: x, cy: y, r: 4.5 }, text),
      ];
    });
    const bars = count.map((n, i) => {
      const tall = (stripBottom - stripTop) * n / most;
      return shape("rect", {
        class: "count", x: (left + size * confidence[i] - 4).toFixed(1), y: (stripBottom - tall).toFixed(1),
        width: 8, height: tall.toFixed(1),
      });
    });
    svg.querySelector(".shapes").replaceChildren(...dots, ...bars);
    svg.querySelector(".most").textContent = shortCount(most);
    svg.querySelector("desc").textContent = describe(diagram);
  }

  // Tables -----------------------------------------------------------------------------------------------------------

  function cellKey(row, column, numeric) {
    const cell = row.cells[column];
    return numeric ? parseFloat(cell.dataset.value) : cell.textContent.trim();
  }

  function sortBy(header, table) {
    const rows = [...table.tBodies[0].rows], column = header.cellIndex, numeric = header.dataset.kind === "number";
    const falling = header.getAttribute("aria-sort") === "ascending";
    rows.sort((a, b) => {
      const [x, y] = [cellKey(a, column, numeric), cellKey(b, column, numeric)];
      if (!numeric) return (falling ? -1 : 1) * x.localeCompare(y, "en", { numeric: true });
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // missing values come last
      return x === y ? 0 : (falling ? -1 : 1) * (x < y ? -1 : 1);
    });
    table.tBodies[0].append(...rows);
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", falling ? "descending" : "ascending");
    byId("status").textContent =
      `Sorted by ${header.textContent.trim()}, in ${falling ? "descending" : "ascending"} order.`;
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    for (const header of table.tHead.rows[0].cells) {
      header.querySelector("button").addEventListener("click", () => sortBy(header, table));
    }
  }

  // Class by class ---------------------------------------------------------------------------------------------------

  const picker = byId("class");
  picker?.addEventListener("change", () => {
    const name = picker.selectedOptions[0].textContent;
    const charts = [...document.querySelectorAll("#by-class .chart")]; // before and after, or only one
    charts.forEach((svg, i) => {
      drawDiagram(svg, data.classes[picker.selectedIndex][i]);
      const when = charts.length === 1 ? "as given" : ["before", "after"][i];
      svg.querySelector("title").textContent = `Reliability of the probability of ${name}, ${when}`;
    });
    byId("class-now").textContent = name;
    byId("status").textContent = `Showing ${name}.`;
  });

  // Decisions --------------------------------------------------------------------------------------------------------

  function startThresholds(data) {
    const slider = byId("threshold");
    slider.addEventListener("input", () => {
      const i = slider.valueAsNumber - 1, t = data.thresholds[i], shown = `${slider.value}%`;
      for (const side of data.compared ? ["given", "chosen"] : ["given"]) {
        const flagged = data[`flagged_${side}`][i], hits = data[`hits_${side}`][i];
        const alarms = flagged - hits, missed = data.positives - hits;
        const texts = {
          flagged: countText(flagged), precision: percent(hits / flagged), recall: percent(hits / data.positives),
          alarms: countText(alarms), missed: countText(missed),
          cost: (1000 * (alarms + missed * (1 - t) / t) / data.total).toFixed(1),
        };
        for (const [key, text] of Object.entries(texts)) byId(`decision-${side}-${key}`).textContent = text;
      }
      const n = data.changed[i];
      const verb = n === 1 ? "decision changes" : "decisions change";
      const changed = n ? `${countText(n)} ${verb} (${percent(n / data.total)}).` : "No decision changes.";
      if (data.compared) byId("decisions-changed").textContent = changed;
      slider.setAttribute("aria-valuetext", shown);
      byId("threshold-now").textContent = shown;
      byId("threshold-shown").textContent = shown;
    });
  }

  if (data.thresholds) startThresholds(data.thresholds); // only for two classes

  // Live -------------------------------------------------------------------------------------------------------------

  function startLive(live) {
    const { labels, fitted } = live;
    const bytes = Uint8Array.from(atob(live.logits), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const logits = Float64Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
    const classes = logits.length / labels.length;
    const controls = {
      gamma: { slider: byId("gamma"), box: byId("gamma-number"), toSlider: (g) => g, fromSlider: (s) => s },
      temperature: {
        slider: byId("temperature"), box: byId("temperature-number"),
        toSlider: Math.log10, fromSlider: (s) => 10 ** s,
      },
    };
    const now = { ...fitted };
    let waiting = false;

    function drawMap(gamma, T) {
      const pair = new Float64Array(2), out = new Float64Array(2), points = [];
      for (let i = 0; i <= 200; i++) {
        const p = i / 200;
        pair[0] = Math.log(p);
        pair[1] = Math.log1p(-p);
        logPosterior(pair, 0, 2, gamma, T, out);
        points.push(`${xOf(p)} ${yOf(Math.exp(out[0]))}`);
      }
      byId("map").querySelector(".now").setAttribute("d", `M${points.join("L")}`);
    }

    function redraw() {
      waiting = false;
      const { gamma, temperature } = now;
      const result = measureRows(logits, labels, classes, gamma, temperature, live.bins);
      const texts = {
        ece: percent(result.ece, 2), nll: decimal(result.nll),
        error: percent(result.error, 2), confidence: percent(result.confidence, 2),
      };
      for (const [key, text] of Object.entries(texts)) {
        const cell = byId(`now-${key}`);
        cell.textContent = text;
        cell.dataset.value = String(result[key]);
      }
      drawDiagram(byId("live"), result.diagram);
      drawMap(gamma, temperature);
      const [g, t] = [gamma, temperature].map((value) => String(Number(value.toPrecision(4))).replace("-", "−"));
      const symbols = `γ\u00a0=\u00a0${g}, T\u00a0=\u00a0${t}`;
      byId("now-where").textContent = symbols;
      byId("now-row").dataset.at = `${gamma} ${temperature}`;
      byId("reset").disabled = gamma === fitted.gamma && temperature === fitted.temperature;
    }

    function schedule() {
      if (!waiting) requestAnimationFrame(redraw);
      waiting = true;
    }

    function show(key) {
      const { slider, box, toSlider } = controls[key];
      slider.value = toSlider(now[key]);
      slider.setAttribute("aria-valuetext", String(Number(now[key].toPrecision(4))));
      box.removeAttribute("aria-invalid");
      byId(`${key}-problem`).textContent = "";
    }

    for (const [key, { slider, box, fromSlider }] of Object.entries(controls)) {
      slider.addEventListener("input", () => {
        const value = fromSlider(slider.valueAsNumber);
        now[key] = Number(Math.min(Math.max(value, Number(box.min)), Number(box.max)).toPrecision(4));
        box.value = now[key];
        show(key);
        schedule();
      });
      box.addEventListener("input", () => {
        const value = box.valueAsNumber;
        if (!(value >= Number(box.min) && value <= Number(box.max))) { // an empty box is NaN, which is rejected, too
          box.setAttribute("aria-invalid", "true");
          byId(`${key}-problem`).textContent = `Enter a number from ${box.min} to ${box.max}`;
          return;
        }
        now[key] = value;
        show(key);
        schedule();
      });
      for (const input of [slider, box]) {
        input.addEventListener("change", () => requestAnimationFrame(() => {
          byId("status").textContent =
            `${byId("now-where").textContent}: ECE ${byId("now-ece").textContent}, NLL ${byId("now-nll").textContent}.`;
        }));
      }
    }

    byId("reset").addEventListener("click", () => {
      for (const [key, { box }] of Object.entries(controls)) {
        now[key] = fitted[key];
        box.value = fitted[key];
        show(key);
      }
      schedule();
      byId("status").textContent = "Reset to the fitted values.";
      controls.gamma.slider.focus(); // the button gets disabled and would lose the focus
    });
  }

  if (data.live) startLive(data.live); // a report measured from sums has no rows

  document.documentElement.classList.add("scripted");
})();
