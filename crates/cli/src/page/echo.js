const TICK_MS = 250;
const LAST_ANSWERS_MS = 10000;
const IN_FLIGHT_BYTES_MAX = 64 << 20;
/** Buckets for each doubling of a latency: exact to two percent. */
const PER_DOUBLING = 32;
/** Message i begins at word i modulo this of the pool, so that one that is lost or late is noticed. */
const STARTS = 251;
let running = null;
const graph = new Graph($("graph"), "run-graph", ["messages per second"], (time) => `${time.toLocaleString("en", { maximumFractionDigits: 1 })} s`);

class Run {
  constructor(size, depth, seconds) {
    Object.assign(this, { size, depth, seconds, sent: 0, received: 0, volume: 0, shown: 0, ended: false });
    // Letters, so that compression has something to do.
    const letters = "abcdefghijklmnopqrstuvwxyz etaoin";
    this.pool = Uint8Array.from({ length: size + 4 * STARTS + 4 }, () => letters.charCodeAt(Math.random() * letters.length));
    this.sentAt = new Float64Array(depth);
    this.latencies = new Uint32Array(40 * PER_DOUBLING);
    this.socket = new WebSocket(address("echo"));
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => this.begin();
    this.socket.onmessage = (event) => this.take(event.data);
    this.socket.onclose = (event) => this.end(whyEnded(event));
    this.clock = 0;
    mark("wait", "Connecting");
  }

  begin() {
    const { extensions } = this.socket;
    $("deflate").textContent = extensions || "none: the server agreed to no extension";
    this.start = this.last = performance.now();
    this.stop = this.start + this.seconds * 1000;
    this.clock = setInterval(() => this.tick(), TICK_MS);
    mark("open", "Running");
    while (this.sent < this.depth) this.send(this.start);
  }

  payload(index) { return 4 * (index % STARTS); }

  send(now) {
    this.sentAt[this.sent % this.depth] = now;
    this.socket.send(this.pool.subarray(this.payload(this.sent), this.payload(this.sent) + this.size));
    this.sent++;
  }

  isRight(data, index) {
    if (!(data instanceof ArrayBuffer) || data.byteLength !== this.size || index >= this.sent) return false;
    const [offset, words] = [this.payload(index), this.size >> 2];
    const [got, want] = [new Int32Array(data, 0, words), new Int32Array(this.pool.buffer, offset, words)];
    for (let at = 0; at < words; at++) if (got[at] !== want[at]) return false;
    const rest = new Uint8Array(data);
    for (let at = 4 * words; at < this.size; at++) if (rest[at] !== this.pool[offset + at]) return false;
    return true;
  }

  take(data) {
    if (this.ended) return;
    if (!this.isRight(data, this.received)) return this.end(`Message ${count(this.received + 1)} came back wrong.`);
    const now = performance.now();
    const microseconds = 1000 * (now - this.sentAt[this.received % this.depth]);
    this.latencies[Math.max(0, Math.floor(Math.log2(microseconds + 1) * PER_DOUBLING))]++;
    this.received++;
    if (now < this.stop) this.send(now);
    else if (this.received === this.sent) this.end("");
  }

  percentile(part) {
    let left = part * this.received;
    for (let bucket = 0; bucket < this.latencies.length; bucket++) {
      left -= this.latencies[bucket];
      if (left <= 0) return `${((2 ** ((bucket + 0.5) / PER_DOUBLING) - 1) / 1000).toFixed(2)} ms`;
    }
    return "–";
  }

  numbers(rate) {
    $("rate").textContent = count(rate);
    $("volume").textContent = `${((2 * rate * this.size) / 1e6).toFixed(1)} MB/s`;
    $("verified").textContent = count(this.received);
    if (this.received) {
      $("p50").textContent = this.percentile(0.5);
      $("p99").textContent = this.percentile(0.99);
    }
  }

  tick() {
    const now = performance.now();
    const rate = (1000 * (this.received - this.shown)) / (now - this.last);
    this.shown = this.received;
    this.last = now;
    if (now < this.stop) {
      this.numbers(rate);
      this.draw(now, rate);
    } else if (now > this.stop + LAST_ANSWERS_MS) {
      this.end(`${count(this.sent - this.received)} messages did not come back.`);
    }
  }

  draw(now, rate) {
    const time = (Math.min(now, this.stop) - this.start) / 1000;
    // The first rate holds from the beginning.
    if (!graph.points.length) graph.add(0, [rate]);
    graph.add(time, [rate]);
    graph.draw(0, this.seconds);
  }

  end(fault) {
    if (this.ended) return;
    this.ended = true;
    clearInterval(this.clock);
    running = null;
    $("start").textContent = "Start";
    if (graph.points.length) this.draw(performance.now(), graph.points.at(-1)[1]);
    if (this.start) this.numbers((1000 * this.received) / (performance.now() - this.start));
    this.socket.close();
    if (fault) mark("lost", fault);
    else mark("open", "Done, every byte verified");
  }
}

function mark(state, text) {
  $("run-state").dataset.state = state;
  $("run-text").textContent = text;
}

function clear() {
  graph.clear();
  for (const id of ["p50", "p99"]) $(id).textContent = "–";
  for (const id of ["rate", "verified"]) $(id).textContent = "0";
  $("volume").textContent = "0 MB/s";
}

function checkInFlight() {
  const tooMuch = $("size").value * $("depth").value > IN_FLIGHT_BYTES_MAX;
  $("depth").setCustomValidity(tooMuch ? "Bytes times messages in flight may be 64 MiB at most." : "");
}

function showCommand() {
  const [size, depth, seconds] = ["size", "depth", "seconds"].map((id) => Number($(id).value) || 1);
  $("command").textContent = `windlass load ${address("echo")} --connections 100 --size ${size} --depth ${depth} --duration ${seconds}`;
}

$("size").oninput = $("depth").oninput = $("seconds").oninput = () => {
  checkInFlight();
  showCommand();
};
showCommand();
$("run").onsubmit = (event) => {
  event.preventDefault();
  if (running) {
    // What is in flight is still waited for, and counted.
    running.stop = Math.min(running.stop ?? 0, performance.now());
    if (!running.start) running.end("Stopped.");
    return;
  }
  clear();
  running = new Run(Number($("size").value), Number($("depth").value), Number($("seconds").value));
  $("start").textContent = "Stop";
};

document.querySelector("main").dataset.ready = "";
