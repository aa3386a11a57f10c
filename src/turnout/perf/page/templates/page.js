(() => {
  "use strict";
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const off = new Set();
  let print = false;

  // Colours are named in charts, and looked up in the style, so that they follow the theme.
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const colour = (named) => {
    const [name, opacity] = named.slice(1).split("/");
    probe.style.color = `var(--${name})`;
    const found = getComputedStyle(probe).color;
    return opacity ? found.replace("rgb(", "rgba(").replace(")", `, ${opacity})`) : found;
  };
  const painted = (value, key) => {
    if (Array.isArray(value)) return value.map((item) => painted(item, key));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v, k)]));
    }
    const named = typeof value === "string" && /color$/i.test(key) && value.startsWith("@");
    return named ? colour(value) : value;
  };

  const axis = (own) => {
    const { title, ...rest } = own || {};
    return {
      gridcolor: colour("@edge"), linecolor: colour("@edge"), zeroline: false,
      automargin: true, nticks: 7, ...rest,
      title: { text: title || "", font: { size: 12, color: colour("@quiet") }, standoff: 8 },
    };
  };
  const layout = (own) => {
    const { xaxis, yaxis, ...rest } = painted(own, "");
    return {
      showlegend: false, autosize: true, dragmode: touch ? false : "zoom", hovermode: "closest",
      margin: { l: 48, r: 12, t: 8, b: 42 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("@quiet") },
      hoverlabel: {
        bgcolor: colour("@raised"), bordercolor: colour("@edge"),
        font: { color: colour("@ink"), size: 12 },
      },
      xaxis: axis(xaxis), yaxis: axis(yaxis), ...rest,
    };
  };
  const config = {
    responsive: true, displaylogo: false, displayModeBar: false,
  };

  const figures = [...document.querySelectorAll("figure")].map((element) => ({
    element,
    plot: element.querySelector(".plot"),
    chart: JSON.parse(element.querySelector("script").textContent),
  }));
  const draw = () => {
    for (const { element, plot, chart } of figures) {
      if (element.hidden) continue;
      const data = chart.data.map((trace) => ({
        ...painted(trace, ""), visible: !(trace.meta && off.has(trace.meta.route)),
      }));
      Plotly.react(plot, data, { ...layout(chart.layout), ...(print ? { width: 640 } : {}) }, config);
    }
  };

  const select = document.getElementById("workload");
  const choose = () => {
    const chosen = select ? select.value : "0";
    for (const { element } of figures) {
      const { workload } = element.dataset;
      element.hidden = workload !== undefined && workload !== chosen;
    }
    draw();
  };
  if (select) select.addEventListener("change", choose);

  for (const button of document.querySelectorAll("button[data-route]")) {
    button.addEventListener("click", () => {
      const route = Number(button.dataset.route);
      if (!off.delete(route)) off.add(route);
      button.setAttribute("aria-pressed", String(!off.has(route)));
      draw();
    });
  }

  const unfold = () => {
    const named = location.hash && document.getElementById(location.hash.slice(1));
    if (named instanceof HTMLDetailsElement) named.open = true;
  };
  addEventListener("hashchange", unfold);

  const theme = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
    draw();
  });
  dark.addEventListener("change", () => { label(); draw(); });

  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    for (const part of document.querySelectorAll("details")) part.open = true;
    print = true;
    draw();
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    print = false;
    draw();
  });

  label();
  unfold();
  choose();
})();
