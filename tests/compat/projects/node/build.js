const fs = require("node:fs");
fs.mkdirSync("dist", { recursive: true });
fs.writeFileSync("dist/index.js", "module.exports = 1;\n");
console.log("wrote", fs.readdirSync("dist"));
