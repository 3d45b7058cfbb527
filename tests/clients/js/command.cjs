// Runs `main` of a script: `node SCRIPT ARGUMENT…` once, with exit code 0 if it passes; `node SCRIPT --each` for each line
// of its input, a JSON list of arguments, and answers with a line: the error as JSON, or null.
"use strict";

const { createInterface } = require("node:readline");
const { inspect } = require("node:util");

async function each(main) {
  for await (const line of createInterface({ input: process.stdin })) {
    const error = await main(JSON.parse(line)).then(() => null, (error) => inspect(error));
    console.log(JSON.stringify(error));
  }
}

function command(main) {
  const given = process.argv.slice(2);
  (given[0] === "--each" ? each(main) : main(given)).then(() => process.exit(0), (error) => {
    console.error(error);
    process.exit(1);
  });
}

module.exports = { command };
