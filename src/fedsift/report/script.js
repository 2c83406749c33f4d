(function () {
  "use strict";
  var tip = document.getElementById("tip");

  function show(event, text) {
    if (!text) { tip.hidden = true; return; }
    tip.textContent = text;
    tip.hidden = false;
    var right = window.innerWidth - tip.offsetWidth - 12;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, right)) + "px";
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 12) + "px";
  }

  function words(value, share) {
    if (value === null || value === undefined) { return "no value"; }
    return share ? (100 * value).toFixed(1) + "%" : String(value);
  }

  function between(low, high, share) {
    return words(low, share) + " to " + words(high, share);
  }

  var kinds = {
    matrix: function (d, x, y) {
      var column = Math.floor((x - d.left) / d.cell), row = Math.floor((y - d.top) / d.height);
      if (row < 0 || row >= d.rows.length || column >= d.columns.length) { return ""; }
      if (column < 0) { return d.rows[row]; }
      return d.rows[row] + "\nclass " + d.columns[column] + ": " + words(d.values[row][column], false);
    },
    bars: function (d, x, y) {
      var row = d.rows[Math.floor((y - d.top) / d.height)];
      return row ? row[0] + "\n" + words(row[1], true) + " of the labels wrong\n" + words(row[2], true) + " set" : "";
    },
    classes: function (d, x) {
      var k = Math.floor((x - d.left) / d.step);
      if (k < 0 || k >= d.names.length) { return ""; }
      return "class " + d.names[k] + d.series.map(function (s) {
        var range = d.ranges[d.series.indexOf(s)][k];
        return "\n" + s[0] + ": " + (range ? between(range[0], range[1], true) : words(s[1][k], true));
      }).join("");
    },
    curve: function (d, x, y, svg) {
      var round = Math.round(d.low + (x - d.left) / (d.right - d.left) * (d.high - d.low));
      var cross = svg.querySelector(".cross");
      if (round <= d.low || round >= d.high) { cross.classList.remove("on"); return ""; }
      var at = d.left + (round - d.low) / (d.high - d.low) * (d.right - d.left);
      cross.setAttribute("x1", at); cross.setAttribute("x2", at); cross.classList.add("on");
      var stage = d.stages.filter(function (s) { return s[1] <= round && round <= s[2]; })[0];
      return "round " + round + (stage ? ", " + stage[0] : "") + d.series.map(function (s) {
        var here = s[1].filter(function (p) { return p[0] === round; })[0];
        if (here) { return "\n" + s[0] + ": " + words(here[1], d.share); }
        var band = d.bands[d.series.indexOf(s)].filter(function (p) { return p[0] === round; })[0];
        return band ? "\n" + s[0] + ": " + between(band[1], band[2], d.share) : "";
      }).join("");
    }
  };

  document.querySelectorAll(".plot").forEach(function (plot) {
    var svg = plot.querySelector("svg"), data = JSON.parse(plot.querySelector("script").textContent);
    svg.addEventListener("mousemove", function (event) {
      var box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
      show(event, kinds[data.kind](data, (event.clientX - box.left) * scale, (event.clientY - box.top) * scale, svg));
    });
    svg.addEventListener("mouseleave", function () {
      tip.hidden = true;
      var cross = svg.querySelector(".cross");
      if (cross) { cross.classList.remove("on"); }
    });
  });

  function key(cell) {
    var text = cell.textContent.trim(), value = parseFloat(text.replace(/,/g, ""));
    return /^[-–]?[\d.,]+(e-?\d+)?\s*%?$/.test(text) && !isNaN(value) ? value : text;
  }

  document.querySelectorAll("table.sortable th").forEach(function (head) {
    head.tabIndex = 0;
    function sort() {
      var body = head.closest("table").tBodies[0], up = head.getAttribute("aria-sort") === "descending";
      var column = Array.prototype.indexOf.call(head.parentNode.children, head);
      Array.from(body.rows).sort(function (a, b) {
        var x = key(a.cells[column]), y = key(b.cells[column]);
        var order = typeof x === "number" && typeof y === "number" ? x - y
          : String(x).localeCompare(String(y), undefined, { numeric: true });
        return up ? order : -order;
      }).forEach(function (row) { body.appendChild(row); });
      Array.from(head.parentNode.children).forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
    }
    head.addEventListener("click", sort);
    head.addEventListener("keydown", function (event) { if (event.key === "Enter") { sort(); } });
  });

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (one) { one.open = true; });
  });
})();
