// Shows the CSV inside of evaluation_cells.md as a table that sorts and filters itself.
(function () {
  var lines = document.getElementById("cells-csv").textContent.trim().split("\n");
  var rows = lines.map(function (line) {
    return (line.match(/("[^"]*"|[^,]*)(,|$)/g) || []).map(function (cell) {
      return cell.replace(/,$/, "").replace(/^"|"$/g, "");
    }).slice(0, lines[0].split(",").length);
  });
  var head = rows.shift(), by = -1, down = false;
  var table = document.getElementById("cells"), box = document.getElementById("cells-filter");
  function order(a, b) {
    var x = a[by], y = b[by], n = x - y;
    var sign = isNaN(n) || x === "" || y === "" ? (x < y ? -1 : x > y ? 1 : 0) : n;
    return down ? -sign : sign;
  }
  function show() {
    var words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    var kept = rows.filter(function (row) {
      var text = row.slice(0, 4).join(" ").toLowerCase();
      return words.every(function (word) { return text.indexOf(word) >= 0; });
    });
    if (by >= 0) { kept.sort(order); }
    table.textContent = "";
    [head].concat(kept).forEach(function (row, place) {
      var line = table.insertRow();
      row.forEach(function (text, column) {
        var cell = document.createElement(place ? "td" : "th");
        cell.textContent = text;
        if (!place) {
          cell.style.cursor = "pointer";
          cell.onclick = function () { down = by === column && !down; by = column; show(); };
        }
        line.appendChild(cell);
      });
    });
  }
  box.oninput = show;
  show();
})();
