(function () {
  "use strict";
  var PAINT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap",
    "stroke-linejoin", "stroke-opacity", "opacity", "visibility", "font-size", "font-weight", "font-family",
    "text-anchor"];

  function save(name, kind, text) {
    var link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: kind }));
    link.download = name;
    document.body.appendChild(link);
    link.click();
    link.remove();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 10000);
  }

  // A picture that looks alone as it does here: the page's style sheet does not travel with it.
  function picture(svg) {
    var copy = svg.cloneNode(true), from = svg.querySelectorAll("*"), to = copy.querySelectorAll("*");
    for (var i = 0; i < from.length; i++) {
      var style = getComputedStyle(from[i]);
      PAINT.forEach(function (name) { to[i].setAttribute(name, style.getPropertyValue(name)); });
      to[i].removeAttribute("class");
    }
    var hatch = document.getElementById("hatch");
    if (hatch && copy.outerHTML.indexOf("#hatch") >= 0) {
      var defs = document.createElementNS(svg.namespaceURI, "defs"), pattern = hatch.cloneNode(true);
      var inner = hatch.querySelectorAll("*"), own = pattern.querySelectorAll("*");
      for (var k = 0; k < inner.length; k++) {
        ["fill", "stroke", "stroke-width"].forEach(function (name) {
          own[k].setAttribute(name, getComputedStyle(inner[k]).getPropertyValue(name));
        });
      }
      defs.appendChild(pattern);
      copy.insertBefore(defs, copy.firstChild);
    }
    var ground = document.createElementNS(svg.namespaceURI, "rect");
    ground.setAttribute("width", "100%");
    ground.setAttribute("height", "100%");
    ground.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
    copy.insertBefore(ground, copy.firstChild);
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + new XMLSerializer().serializeToString(copy)
      .replace(/url\((?:&quot;|")[^)]*#hatch(?:&quot;|")\)/g, "url(#hatch)");
  }

  // A cell that a spreadsheet would compute gets an apostrophe, as in every table that fedsift writes.
  function cell(value) {
    if (value === null || value === undefined) { return ""; }
    if (typeof value === "number") { return String(value); }
    var text = String(value);
    if (/^[=+\-@\t\r＝＋－＠]/.test(text)) { text = "'" + text; }
    return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  }

  var tables = {
    curve: function (d) {
      var rounds = {}, heads = ["round"];
      d.series.forEach(function (s, i) {
        var band = d.bands && d.bands[i] && d.bands[i].length ? d.bands[i] : null, at = heads.length;
        heads.push(s[0]);
        if (band) { heads.push(s[0] + ", low", s[0] + ", high"); }
        s[1].forEach(function (p, j) {
          var row = rounds[p[0]] = rounds[p[0]] || [p[0]];
          row[at] = p[1];
          if (band) { row[at + 1] = band[j][1]; row[at + 2] = band[j][2]; }
        });
      });
      var keys = Object.keys(rounds).map(Number).sort(function (a, b) { return a - b; });
      return [heads].concat(keys.map(function (key) {
        return heads.map(function (_, i) { return rounds[key][i]; });
      }));
    },
    classes: function (d) {
      return [["class"].concat(d.series.map(function (s) { return s[0]; }))].concat(d.names.map(function (name, k) {
        return [name].concat(d.series.map(function (s) { return s[1][k]; }));
      }));
    },
    bars: function (d) { return [["site", "labels wrong", "noise level set"]].concat(d.rows); },
    matrix: function (d) {
      return [[d.corner || "site"].concat(d.columns)].concat(d.rows.map(function (name, i) {
        return [name].concat(d.values[i]);
      }));
    }
  };

  function slug(text) {
    return text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "") || "figure";
  }

  function button(words, label, act) {
    var made = document.createElement("button");
    made.type = "button";
    made.textContent = words;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  }

  document.querySelectorAll("figure").forEach(function (figure) {
    var plot = figure.querySelector(".plot"), caption = figure.querySelector("figcaption");
    if (!plot || !caption) { return; }
    var title = (caption.querySelector("b") || caption).textContent, name = slug(title);
    var data = plot.querySelector("script"), tools = document.createElement("span");
    tools.className = "save";
    tools.appendChild(button("SVG", "Save “" + title + "” as SVG", function () {
      save(name + ".svg", "image/svg+xml", picture(plot.querySelector("svg")));
    }));
    var values = data && JSON.parse(data.textContent);
    if (values && tables[values.kind]) {
      tools.appendChild(button("CSV", "Save the numbers of “" + title + "” as CSV", function () {
        var lines = tables[values.kind](values).map(function (row) { return Array.from(row, cell).join(","); });
        save(name + ".csv", "text/csv", "﻿" + lines.join("\n") + "\n");
      }));
    }
    caption.insertBefore(tools, caption.firstChild);
  });
})();
