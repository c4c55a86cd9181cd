const assert = require("node:assert");
const { execFileSync, spawnSync } = require("node:child_process");
const test = require("node:test");

test("adds", () => assert.strictEqual(1 + 1, 2));
test("starts programs", () => {
  assert.strictEqual(execFileSync("cat", { input: "hello" }).toString(), "hello");
  assert.strictEqual(spawnSync("sh", ["-c", "exit 3"]).status, 3);
});
