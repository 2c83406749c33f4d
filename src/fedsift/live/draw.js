/* Drawing that the live pages share: a lane of rounds, a curve, numbers in words. */
"use strict";
var Draw = (function () {
  var SVG = "http://www.w3.org/2000/svg";
  var NAMES = ["", "answered", "working", "absent", "refused"];
  var HEIGHT = 7;

  /* The colours of the style sheet (#rrggbb) as pixels; 0 is the ground. */
  function colours() {
    var style = getComputedStyle(document.documentElement);
    return NAMES.map(function (name) {
      if (!name) { return 0; }
      var value = parseInt(style.getPropertyValue("--" + name).trim().slice(1), 16);
      return (255 << 24 | (value & 255) << 16 | (value >> 8 & 255) << 8 | value >> 16) >>> 0;
    });
  }

  /* Shape shows it too: an answer is a band in the middle, what was set aside is full height, absence lies at the foot. */
  var SHAPES = [[0, 0], [2, 5], [2, 5], [5, 7], [0, 7]];

  /* A lane: `code(i)` of `count` rounds over the canvas's width; of rounds that share a pixel the most notable shows.
     Only the part of the rounds `first` to `last` is drawn, pixel by pixel: a call for each would be slow. */
  function lane(canvas, width, count, code, palette, first, last) {
    if (canvas.width !== width || canvas.height !== HEIGHT) {
      canvas.width = width; canvas.height = HEIGHT; first = 0; last = count - 1;
    }
    if (!count) { return; }
    var step = width / count, from = Math.floor(first * step), to = Math.min(width, Math.ceil((last + 1) * step));
    if (to <= from) { return; }
    var context = canvas.getContext("2d"), picture = context.createImageData(to - from, HEIGHT);
    var pixels = new Uint32Array(picture.data.buffer);
    for (var x = from; x < to; x += 1) {
      var here = worst(code, count, x, step), shape = SHAPES[here], colour = palette[here];
      for (var y = shape[0]; y < shape[1]; y += 1) { pixels[y * (to - from) + x - from] = colour; }
    }
    context.putImageData(picture, from, 0);
  }

  function widthOf(canvas) { return Math.max(1, Math.round(canvas.clientWidth || 300)); }

  function worst(code, count, x, step) {
    var from = Math.floor(x / step), to = Math.max(from + 1, Math.ceil((x + 1) / step - 1e-9)), found = 0;
    if (to - from === 1 || step >= 1) { return code(Math.min(count - 1, Math.floor((x + 0.5) / step))); }
    for (var i = from; i < to && i < count; i += 1) { found = Math.max(found, code(i)); }
    return found;
  }

  function element(name, attributes, text) {
    var made = document.createElementNS(SVG, name);
    Object.keys(attributes).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    if (text !== undefined) { made.textContent = text; }
    return made;
  }

  function ticks(low, high, most) {
    if (!(high > low)) { high = low + Math.max(0.02 * Math.abs(low), 1e-6); low -= high - low; }
    var raw = (high - low) / most, power = Math.pow(10, Math.floor(Math.log10(raw)));
    var step = [1, 2, 2.5, 5, 10].map(function (f) { return f * power; })
      .filter(function (s) { return s >= raw * 0.999; })[0];
    var found = [];
    for (var i = Math.floor(low / step + 1e-9); i <= Math.ceil(high / step - 1e-9); i += 1) { found.push(i * step); }
    return found;
  }

  /* One panel: series of [round, value] over `of` rounds, with the stages shaded. */
  function Plot(title, share) {
    this.title = title; this.share = share; this.series = {};
    this.width = 520; this.height = 230; this.left = 48; this.right = 18; this.top = 22; this.bottom = 34;
    this.svg = element("svg", { viewBox: "0 0 520 230", width: 520, height: 230, role: "img" });
    this.figure = document.createElement("figure");
    var caption = document.createElement("figcaption"), strong = document.createElement("b");
    strong.textContent = title;
    this.latest = document.createElement("span");
    caption.append(strong, " ", this.latest);
    var frame = document.createElement("div");
    frame.className = "plot";
    frame.append(this.svg);
    this.figure.append(caption, frame);
    var plot = this;
    this.svg.addEventListener("mousemove", function (event) { plot.point(event); });
    this.svg.addEventListener("mouseleave", function () { document.getElementById("tip").hidden = true; });
  }

  Plot.prototype.draw = function (of, stages) {
    var names = Object.keys(this.series), low = Infinity, high = -Infinity, plot = this;
    names.forEach(function (name) {
      plot.series[name].forEach(function (p) { low = Math.min(low, p[1]); high = Math.max(high, p[1]); });
    });
    if (low === Infinity) { return; }
    var marks = ticks(low, high, 5);
    if (this.share && marks.length > 2) {
      marks = marks.filter(function (m) { return m >= -1e-9 && m <= 1 + 1e-9; });
    }
    var bottom = this.height - this.bottom, span = this.width - this.left - this.right;
    this.of = of;
    var across = function (r) { return plot.left + (r - 0.5) / of * span; };
    var first = marks[0], reach = marks[marks.length - 1] - first;
    var up = function (v) { return bottom - (v - first) / reach * (bottom - plot.top); };
    var parts = [element("title", {}, this.title + " by round")], at = 0;
    stages.forEach(function (stage, i) {
      if (!stage.rounds) { return; }
      var from = across(at + 0.5), to = across(at + stage.rounds + 0.5);
      at += stage.rounds;
      parts.push(element("rect", { x: from, y: plot.top, width: to - from, height: bottom - plot.top, "class": "band b" + i % 2 }));
      if (stage.name.length * 6 < to - from - 4) {
        parts.push(element("text", { x: (from + to) / 2, y: plot.top - 8, "text-anchor": "middle", "class": "stage" }, stage.name));
      }
    });
    var fine = marks.length > 1 && marks[1] - marks[0] < 0.0099;
    marks.forEach(function (m) {
      var words = plot.share ? (100 * m).toFixed(fine ? 1 : 0) + "%" : String(+m.toPrecision(4));
      parts.push(element("line", { x1: plot.left, x2: plot.width - plot.right, y1: up(m), y2: up(m), "class": "grid" }));
      parts.push(element("text", { x: plot.left - 6, y: up(m) + 4, "text-anchor": "end" }, words));
    });
    whole(of).forEach(function (r) {
      parts.push(element("text", { x: across(r), y: bottom + 15, "text-anchor": "middle" }, r));
    });
    parts.push(element("line", { x1: this.left, x2: this.width - this.right, y1: bottom, y2: bottom, "class": "axis" }));
    parts.push(element("text", { x: (this.left + this.width - this.right) / 2, y: this.height - 3, "text-anchor": "middle" }, "round"));
    names.forEach(function (name, i) {
      var points = plot.series[name], few = thinned(points, 400), path = "";
      for (var k = 0; k < few.length; k += 1) {
        path += (k ? "L" : "M") + Math.round(10 * across(few[k][0])) / 10 + " " + Math.round(10 * up(few[k][1])) / 10;
      }
      parts.push(element("path", { d: path, "class": "curve s" + i }));
      if (points.length) {
        var last = points[points.length - 1];
        parts.push(element("circle", { cx: across(last[0]), cy: up(last[1]), r: 3.2, "class": "point s" + i }));
      }
    });
    this.svg.replaceChildren.apply(this.svg, parts);
    this.latest.replaceChildren();
    names.forEach(function (name, i) {
      var points = plot.series[name], last = points[points.length - 1];
      if (names.length > 1) {
        var swatch = element("svg", { "class": "swatch", width: 26, height: 10, "aria-hidden": "true" });
        swatch.append(element("line", { x1: 1, y1: 5, x2: 25, y2: 5, "class": "curve s" + i }));
        plot.latest.append(i ? " \u2003" : "", swatch, name + " ");
      }
      plot.latest.append(plot.words(last[1]));
    });
  };

  Plot.prototype.words = function (value) {
    return this.share ? (100 * value).toFixed(1) + "%" : String(+value.toPrecision(4));
  };

  Plot.prototype.point = function (event) {
    var box = this.svg.getBoundingClientRect(), tip = document.getElementById("tip"), plot = this;
    var x = (event.clientX - box.left) * this.width / box.width;
    var round = Math.round((x - this.left) / (this.width - this.left - this.right) * this.of + 0.5), said = [];
    Object.keys(this.series).forEach(function (name) {
      var best = null;
      plot.series[name].forEach(function (p) {
        if (best === null || Math.abs(p[0] - round) < Math.abs(best[0] - round)) { best = p; }
      });
      if (best) { said.push(name + ", round " + best[0] + ": " + plot.words(best[1])); }
    });
    tip.textContent = said.join("\n");
    tip.hidden = !said.length;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 12)) + "px";
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 12) + "px";
  };

  /* No more points than a screen can show: of each stretch the lowest and the highest, in their order. */
  function thinned(points, most) {
    if (points.length <= most) { return points; }
    var width = Math.ceil(2 * points.length / most), kept = [];
    for (var start = 0; start < points.length; start += width) {
      var low = points[start], high = low;
      for (var k = start; k < start + width && k < points.length; k += 1) {
        if (points[k][1] < low[1]) { low = points[k]; }
        if (points[k][1] > high[1]) { high = points[k]; }
      }
      if (low[0] < high[0]) { kept.push(low, high); } else { kept.push(high, low); }
    }
    kept.push(points[points.length - 1]);
    return kept;
  }

  function whole(of) {
    if (of <= 8) { return Array.from({ length: of }, function (_, i) { return i + 1; }); }
    var raw = of / 8, power = Math.pow(10, Math.floor(Math.log10(raw)));
    var step = [1, 2, 5, 10].map(function (f) { return f * power; }).filter(function (s) { return s >= raw; })[0], found = [];
    for (var r = step; r <= of; r += step) { found.push(r); }
    return found;
  }

  function size(count) {
    var units = ["B", "kB", "MB", "GB", "TB"], i = 0;
    while (count >= 1000 && i < 4) { count /= 1000; i += 1; }
    return (i ? count.toFixed(1) : String(count)) + " " + units[i];
  }

  function duration(s) {
    if (s === null || s === undefined) { return "–"; }
    if (s < 90) { return (s < 10 ? s.toFixed(1) : s.toFixed(0)) + " s"; }
    return s < 5400 ? (s / 60).toFixed(0) + " min" : (s / 3600).toFixed(1) + " h";
  }

  function tile(name, value, under) {
    var box = document.createElement("div"), parts = [["dt", name, ""], ["dd", value, "value"], ["dd", under, "under"]];
    parts.forEach(function (p) {
      var made = document.createElement(p[0]);
      made.textContent = p[1];
      if (p[2]) { made.className = p[2]; }
      box.append(made);
    });
    return box;
  }

  return { colours: colours, lane: lane, widthOf: widthOf, Plot: Plot, size: size, duration: duration, tile: tile };
})();
