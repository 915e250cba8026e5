const LIVE_SECONDS = 120;
const LIVE_SECONDS_MIN = 15;
const WORKERS_SHOWN = 16;
const ROOMS_SHOWN = 5;
const HAS_STATUS = document.body.dataset.status === "on";
const live = { socket: null, attempt: 0, timer: 0, got: 0, at: 0, before: null, rates: [], graph: null, rows: [], rooms: [] };

function addRow(table, nameOf) {
  const row = element("tr");
  const name = nameOf(row);
  const cell = element("td", "bar");
  const [fill, number] = [element("i"), element("b", "", "–")];
  cell.append(fill, number);
  const last = element("td", "", "–");
  row.append(cell, last);
  $(table).tBodies[0].append(row);
  return { name, fill, number, last };
}

function head(row, text) {
  const cell = element("th", "", text);
  cell.scope = "row";
  row.append(cell);
  return cell;
}

function fillRow(row, rate, most, last) {
  row.fill.hidden = !(rate > 0);
  row.fill.style.width = `${most > 0 && rate > 0 ? Math.max(1, (100 * rate) / most) : 0}%`;
  row.number.textContent = count(rate);
  row.last.textContent = last;
}

function clearRow(row) {
  fillRow(row, 0, 0, "–");
  row.number.textContent = "–";
}

const digits = (number) => number.toLocaleString("en", { maximumSignificantDigits: 3 });
const bytes = (perSecond) => (perSecond >= 1e6 ? `${digits(perSecond / 1e6)} MB/s` : `${digits(perSecond / 1e3)} kB/s`);
const lag = (microseconds) => (microseconds >= 1000 ? `${(microseconds / 1000).toFixed(1)} ms` : `${Math.round(microseconds)} µs`);

/** The rates of a worker between two copies. If the last one is not newer, its rates stay. */
function ratesOf(worker, before, last) {
  const seconds = (worker.at_ms - (before?.at_ms ?? worker.at_ms)) / 1000;
  if (!(seconds > 0)) return last ?? { in: 0, out: 0, bytes: 0, lag: 0 };
  const lags = worker.lag_count - before.lag_count;
  return {
    in: (worker.messages_in - before.messages_in) / seconds,
    out: (worker.messages_out - before.messages_out) / seconds,
    bytes: (worker.bytes_in + worker.bytes_out - before.bytes_in - before.bytes_out) / seconds,
    lag: lags > 0 ? (worker.lag_sum_us - before.lag_sum_us) / lags : 0,
  };
}

function showStatus(status) {
  const { before } = live;
  const now = performance.now() / 1000;
  live.before = status;
  live.rates = status.workers.map((worker, index) => ratesOf(worker, before?.workers[index], live.rates[index]));
  const sum = (field) => live.rates.reduce((sum, rates) => sum + rates[field], 0);
  const [rate, volume] = [sum("in") + sum("out"), sum("bytes")];
  $("live-connections").textContent = count(status.connections.open);
  $("live-slow").textContent = count(status.slow_receivers);
  $("about").textContent = `${status.backend}, version ${status.version}, up ${since(status.uptime_seconds)}`;
  markLive(status.state === "ready" ? "open" : "wait", { ready: "Live", draining: "Shutting down", over_budget: "Memory budget is spent", disconnected: "Not connected to the cluster" }[status.state] ?? status.state);
  if (status.cluster) showCluster(status.cluster);
  if (before) {
    $("live-rate").textContent = count(rate);
    $("live-bytes").textContent = bytes(volume);
    $("live-lag").textContent = lag(Math.max(...live.rates.map((rates) => rates.lag)));
    $("live-own").textContent = count(live.got / (now - live.at));
    live.graph.add(now, [sum("in"), sum("out")]);
    live.graph.now = now;
    const shown = Math.min(Math.max(now - live.graph.points[0][0], LIVE_SECONDS_MIN), LIVE_SECONDS);
    live.graph.draw(now - shown, now);
  }
  Object.assign(live, { at: now, got: 0 });
  const most = Math.max(...live.rates.map((rates) => rates.in + rates.out));
  live.rows.forEach((row, index) => {
    const rates = live.rates[index];
    if (rates) fillRow(row, rates.in + rates.out, most, count(status.workers[index].open));
  });
  showRooms(status.busiest);
}

/** The sums of this node alone. */
function showCluster({ state, subscriptions, published, received, dropped, missed }) {
  $("live-cluster").textContent = `${state}, ${count(subscriptions)} topics subscribed; ` +
    `${count(published)} published, ${count(received)} received, ${count(dropped)} dropped, ${count(missed)} missed`;
}

function showRooms(topics) {
  const rooms = topics.filter((topic) => topic.name.startsWith("/room/")).slice(0, ROOMS_SHOWN);
  const most = Math.max(...rooms.map((room) => room.per_second));
  live.rooms.forEach((row, index) => {
    const room = rooms[index];
    if (!room) {
      clearRow(row);
      row.path = row.name.title = "";
      row.name.textContent = "–";
      return row.name.removeAttribute("href");
    }
    const path = room.name.slice(1);
    if (row.path !== path) {
      row.path = path;
      const name = decoded(path.slice("room/".length));
      // The page at some paths of other clients would enter another room.
      const leads = isRoom(name) && pathOf(name.trim()) === path;
      row.name.textContent = name;
      row.name.title = leads ? name : room.name;
      if (leads) row.name.href = BASE + path;
      else row.name.removeAttribute("href");
    }
    fillRow(row, room.per_second, most, count(room.subscribers));
  });
}

function since(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${seconds} s`;
}

function markLive(state, text) {
  $("live-state").dataset.state = state;
  if ($("live-text").textContent !== text) $("live-text").textContent = text;
}

/** Opens the live view of a room, which ends with the chat. Only the server sends here. */
function openLive(room, name) {
  dropLive();
  const socket = new WebSocket(address(`live/${room}`) + (location.search ? "&" : "?") + `as=${encodeURIComponent(name)}`);
  live.socket = socket;
  socket.onmessage = ({ data }) => {
    if (socket !== live.socket || typeof data !== "string") return;
    live.got++;
    live.attempt = 0;
    const message = JSON.parse(data);
    if ("members" in message) showMembers(message);
    else showStatus(message);
  };
  socket.onclose = () => {
    if (socket !== live.socket) return;
    closeLive();
    live.timer = setTimeout(openLive, backoff(live.attempt++), room, name);
  };
}

function dropLive() {
  clearTimeout(live.timer);
  live.socket?.close();
  Object.assign(live, { socket: null, before: null, rates: [] });
  markLive("wait", "Connecting");
  $("members").textContent = "";
}

/** Old figures are not shown as if they were of now. */
function closeLive() {
  dropLive();
  markLive("lost", "Not connected");
  $("about").textContent = "";
  for (const figure of document.querySelectorAll(".live dd, #live-cluster, #live-own")) figure.textContent = "–";
  live.rows.forEach(clearRow);
  showRooms([]);
  if (HAS_STATUS) clearGraph();
}

function clearGraph() {
  live.graph.now = LIVE_SECONDS_MIN;
  live.graph.clear();
  live.graph.draw(0, LIVE_SECONDS_MIN);
}

if (HAS_STATUS) {
  live.graph = new Graph($("live-plot"), "live-graph", ["in", "out"], (time) => {
    const ago = Math.round((live.graph?.now ?? 0) - time);
    return ago <= 0 ? "now" : `${ago} s ago`;
  });
  clearGraph();
  const workers = Number(document.body.dataset.workers);
  for (let index = 0; index < Math.min(workers, WORKERS_SHOWN); index++) {
    live.rows.push(addRow("workers", (row) => head(row, `${index}`)));
  }
  if (workers > WORKERS_SHOWN) head($("workers").createTFoot().insertRow(), `and ${workers - WORKERS_SHOWN} more`).colSpan = 3;
  for (let index = 0; index < ROOMS_SHOWN; index++) {
    live.rooms.push(addRow("rooms", (row) => {
      const link = element("a", "", "–");
      if (!index) link.id = "busiest";
      head(row, "").append(link);
      return link;
    }));
  }
}


// Behind a proxy the host is another one.
$("load").hidden = document.body.dataset.load === "off" || !/^(localhost|127\..*|\[::1])$/.test(location.hostname);
$("load-start").onclick = ({ target }) => {
  const [socket, text] = [new WebSocket(address("load")), $("load-text")];
  target.disabled = true;
  socket.onmessage = ({ data }) => { text.textContent = data; };
  socket.onclose = (event) => {
    target.disabled = false;
    if (event.code !== 1000) text.textContent = whyEnded(event);
  };
};
