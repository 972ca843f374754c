/* Draws the figures, sorts and filters tables, and looks again while a run goes on. Without it the page can be read. */
(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (name, properties) => Object.assign(document.createElement(name), properties);

  // --- figures ---
  const draw = (figure) => {
    const { config, datasets, panels } = JSON.parse(figure.querySelector("script.spec").textContent);
    for (const place of all(".plot", figure)) {
      const spec = {
        $schema: "https://vega.github.io/schema/vega-lite/v6.json",
        width: "container",
        autosize: { type: "fit-x", contains: "padding" },
        config: { ...config, legend: { ...config.legend, columns: Math.max(1, Math.floor(place.clientWidth / 190)) } },
        datasets,
        ...panels[Number(place.dataset.panel)],
      };
      // With its own interpreter: the page's policy forbids eval.
      const options = { mode: "vega-lite", renderer: "svg", ast: true, actions: false, tooltip: { theme: "page" } };
      // Vega names the element that it draws in; ours has its own words.
      const inside = place.appendChild(make("div", {}));
      recipeEmbed(inside, spec, options).catch((error) => {
        place.textContent = `This picture cannot be drawn (${error.message}): see the table.`;
      });
    }
  };
  if (typeof recipeEmbed === "function") all("figure.drawn").filter((f) => f.querySelector("script.spec")).forEach(draw);

  // --- tables ---
  const NUMBER = /^[~≥+-]?[\d,]*\.?\d+(e[+-]?\d+)?( ± [\d.,]+)?\s*[%a-zA-Z/]{0,6}$/;
  const words = new Intl.Collator("en", { numeric: true });
  const empty = (said) => said === "" || said === "–";

  const compare = (values) => {
    const numbers = values.every((said) => empty(said) || NUMBER.test(said));
    const number = (said) => parseFloat(said.replace(/[~≥,]/g, ""));
    return numbers ? (a, b) => number(a) - number(b) : words.compare;
  };

  const sort = (table, head, column) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const said = new Map(rows.map((row) => [row, row.cells[column].textContent.trim()]));
    const down = head.getAttribute("aria-sort") === "ascending";
    const order = compare([...said.values()]);
    rows.sort((a, b) => {
      const [one, other] = [said.get(a), said.get(b)];
      // What was not measured stays last, whichever way.
      if (empty(one) || empty(other)) return empty(one) - empty(other);
      return (down ? -1 : 1) * order(one, other);
    });
    body.append(...rows);
    for (const other of all("th[aria-sort]", table.tHead)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  };

  for (const table of all("table.sortable")) {
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    heads.forEach((head, column) => {
      const button = make("button", { type: "button", className: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(table, head, column));
    });
  }

  const filter = (table) => {
    const rows = [...table.tBodies[0].rows];
    const label = make("label", { className: "filter" });
    const field = make("input", { type: "search", autocomplete: "off", spellcheck: false });
    const count = make("output", {});
    label.append("Filter ", field, " ", count);
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const apply = () => {
      const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      rows.forEach((row, index) => {
        row.hidden = !wanted.every((word) => texts[index].includes(word));
        left += !row.hidden;
      });
      count.textContent = wanted.length ? `${left} of ${rows.length} rows` : "";
    };
    field.addEventListener("input", apply);
    table.closest(".scroll").before(label);
  };
  all("table.filtered").forEach(filter);

  // --- a run that goes on, shown by recipe report --serve ---
  const seconds = Number(document.documentElement.dataset.look);
  if (seconds > 0) {
    let known = null;
    const look = async () => {
      try {
        const tag = (await fetch(location.href, { method: "HEAD", cache: "no-store" })).headers.get("ETag");
        if (known !== null && tag !== known) return location.reload();
        known = tag;
      } catch {
        // Nobody serves it any more: what is shown stays.
      }
      setTimeout(look, seconds * 1000);
    };
    look();
  }
})();
