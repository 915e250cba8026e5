const LOG_MAX = 300;
const WAIT_MIN_MS = 500;
const WAIT_MAX_MS = 15000;
const chat = { room: "", socket: null, attempt: 0, due: 0, timer: 0, follows: true };

/** Doubles, and differs from tab to tab, so that they do not all come at once. */
const backoff = (attempt) => Math.min(WAIT_MAX_MS, WAIT_MIN_MS * 2 ** attempt) * (0.75 + Math.random() / 2);

/** What is left of a text that was cut within a character cannot be encoded. */
const wellFormed = (text) => text.replace(/\p{Surrogate}/gu, "\ufffd");

const NAME_MAX = document.body.dataset.nameMax;

/** `.` and `..` are no parts of a path: browsers leave them out. */
const isRoom = (name) => name !== "" && !name.split("/").some((part) => part === "." || part === "..") && pathOf(name).length - "room/".length <= NAME_MAX;

function roomOfAddress() {
  const path = location.pathname.slice(BASE.length);
  const name = path.startsWith("room/") ? decoded(path.slice(5)).trim() : "";
  return isRoom(name) ? name : "lobby";
}

const pathOf = (room) => "room/" + room.split("/").map(encodeURIComponent).join("/");

function show(state, text) {
  $("state").dataset.state = state;
  $("state-text").textContent = text;
  $("again").hidden = state !== "lost";
  $("send").disabled = state !== "open";
}

/** Adds an entry. Everything is text, nothing is markup. */
function add(kind, who, what) {
  const log = $("log");
  const entry = element("div", "entry " + kind);
  if (who) {
    const now = new Date();
    const line = element("div", "who");
    const time = element("time", "", now.toTimeString().slice(0, 5));
    time.dateTime = now.toISOString();
    line.append(element("b", "", who), time);
    entry.append(line);
  }
  const text = element("div", "what", what);
  text.dir = "auto";
  entry.append(text);
  log.append(entry);
  while (log.childElementCount > LOG_MAX) log.firstElementChild.remove();
  chat.follows ||= kind === "own";
  follow();
}

function follow() {
  if (chat.follows) $("log").scrollTop = $("log").scrollHeight;
}

/** A message of this page is JSON with a name and a text. Others are shown as received. */
function read(data) {
  if (typeof data !== "string") return add("", "another client", `${count(data.byteLength)} bytes`);
  try {
    const { name, text } = JSON.parse(data);
    if (typeof name === "string" && typeof text === "string") return add("", [...name].slice(0, 40).join("") || "nameless", text);
  } catch { /* Not ours. */ }
  add("", "another client", data);
}

function connect() {
  clearTimeout(chat.timer);
  const socket = new WebSocket(address(pathOf(chat.room)));
  socket.binaryType = "arraybuffer";
  chat.socket?.close();
  chat.socket = socket;
  show("wait", "Connecting");
  socket.onopen = () => {
    if (socket !== chat.socket) return;
    chat.attempt = 0;
    show("open", "Connected");
    add("note", "", `You are in ${chat.room}.`);
    openLive(pathOf(chat.room).slice("room/".length), myName());
  };
  socket.onmessage = (event) => {
    if (socket !== chat.socket) return;
    live.got++;
    read(event.data);
  };
  socket.onclose = (event) => { if (socket === chat.socket) lost(event); };
}

function lost(event) {
  if ($("state").dataset.state === "open") {
    add("note", "", whyEnded(event));
  }
  closeLive();
  show("lost", "Not connected");
  chat.due = performance.now() + backoff(chat.attempt++);
  tick();
}

function tick() {
  const left = chat.due - performance.now();
  if (left <= 0) return connect();
  $("countdown").textContent = ` in ${Math.ceil(left / 1000)} s`;
  chat.timer = setTimeout(tick, Math.min(left, 250));
}

function enter(room) {
  $("room").value = room;
  $("room").setCustomValidity("");
  if (room === chat.room && chat.socket?.readyState <= WebSocket.OPEN) return;
  chat.room = room;
  chat.attempt = 0;
  document.title = `${room} · Windlass`;
  $("link").href = BASE + pathOf(room);
  $("address").textContent = address(pathOf(room));
  $("log").replaceChildren();
  dropLive();
  connect();
}

function showMembers({ members, joined, left }) {
  const where = document.body.dataset.cluster === "on" ? " at this server" : "";
  $("members").textContent = (members === 1 ? "Only you are here" : `${count(members)} members`) + where;
  const others = (names) => [...new Set(names)].filter((name) => name !== myName()).join(", ");
  if (others(joined)) add("note", "", `${others(joined)} joined.`);
  if (others(left)) add("note", "", `${others(left)} left.`);
}

const myName = () => $("name").value.trim() || "nameless";
// A guest is of one tab. A duplicate copies what the tab keeps: nothing while its page is shown.
const [ofTab, ofUser] = ["sessionStorage", "localStorage"].map(memory);
$("name").value = ofTab.get() || ofUser.get() || `guest ${Math.random().toString(36).slice(2, 6)}`;
$("name").onchange = () => ofUser.set($("name").value.trim());
addEventListener("pageshow", () => ofTab.set(""));
addEventListener("pagehide", () => ofTab.set($("name").value.trim()));
const roomOfField = () => wellFormed($("room").value.trim()) || "lobby";
$("room").oninput = () => $("room").setCustomValidity(isRoom(roomOfField()) ? "" : `A room cannot be called . or .., and its path has at most ${NAME_MAX} bytes`);
$("join").onsubmit = (event) => {
  event.preventDefault();
  const room = roomOfField();
  if (room !== chat.room) history.pushState(null, "", BASE + pathOf(room));
  enter(room);
  $("text").focus();
};
$("compose").onsubmit = (event) => {
  event.preventDefault();
  const text = $("text").value;
  if (chat.socket.readyState !== WebSocket.OPEN || !text.trim()) return;
  const name = myName();
  chat.socket.send(JSON.stringify({ name, text }));
  add("own", name, text);
  $("text").value = "";
};
$("retry").onclick = () => {
  // The button goes with the state.
  $("text").focus();
  connect();
};
$("log").onscroll = ({ target }) => { chat.follows = target.scrollHeight - target.scrollTop - target.clientHeight < 40; };
new ResizeObserver(follow).observe($("log"));
addEventListener("online", () => { if ($("state").dataset.state === "lost") connect(); });
addEventListener("popstate", () => enter(roomOfAddress()));
enter(roomOfAddress());

