// Child processes of every kind, workers, a server on the loopback interface, watching a file.
const { spawn, exec, fork, spawnSync } = require("node:child_process");
const { Worker, isMainThread, parentPort } = require("node:worker_threads");
const fs = require("node:fs");
const http = require("node:http");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");

if (process.argv[2] === "child") {
  process.on("message", (message) => process.send(message * 2, () => process.disconnect()));
} else if (!isMainThread) {
  parentPort.postMessage(Array.from({ length: 1000 }, (_, i) => i).reduce((a, b) => a + b));
} else {
  main().then(() => process.exit(6));
}

async function main() {
  const many = await Promise.all(
    Array.from({ length: 30 }, (_, number) => new Promise((resolve) => {
      const child = spawn("cat");
      let out = "";
      child.stdout.on("data", (data) => { out += data; });
      child.on("close", () => resolve(out));
      child.stdin.end(String(number));
    })));
  console.log("spawn", many.join(","));
  console.log("exec", await new Promise((resolve) => exec("exit 9", (error) => resolve(error.code))));
  console.log("fork", await new Promise((resolve) => {
    const child = fork(__filename, ["child"]);
    child.on("message", resolve);
    child.send(21);
  }));
  const killed = spawn("sleep", ["100"]);
  killed.kill("SIGTERM");
  console.log("signal", await new Promise((resolve) => killed.on("exit", (code, signal) => resolve(signal))));
  console.log("timeout", spawnSync("sleep", ["100"], { timeout: 200 }).error.code);
  console.log("missing", spawnSync("no-such-program").error.code);
  console.log("worker", await new Promise((resolve) => new Worker(__filename).on("message", resolve)));
  const server = http.createServer((_, response) => response.end("served")).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.on("listening", resolve));
  console.log("http", await new Promise((resolve) =>
    http.get({ port: server.address().port, host: "127.0.0.1" }, (response) => response.on("data", (data) => resolve(String(data))))));
  server.close();
  const place = path.join(os.tmpdir(), "socket");
  const local = net.createServer((socket) => socket.end("local")).listen(place);
  await new Promise((resolve) => local.on("listening", resolve));
  console.log("unix", await new Promise((resolve) => net.connect(place).on("data", (data) => resolve(String(data)))));
  local.close();
  fs.writeFileSync("watched", "");
  const seen = new Promise((resolve) => fs.watch("watched", resolve));
  fs.writeFileSync("watched", "changed");
  console.log("watch", await seen);
}
