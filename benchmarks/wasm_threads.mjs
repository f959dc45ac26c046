// SPDX-License-Identifier: Apache-2.0
/*
 * Measures an npm package of the target wasm32-threads by numbers of threads, in turns in one process of node.
 *
 *   aotc compile net.onnx --target wasm32-threads --package npm -o /tmp/net-npm
 *   node benchmarks/wasm_threads.mjs /tmp/net-npm [THREADS] [ROUNDS]
 *
 * The model has inputs of float32 or int8. Prints one JSON object: milliseconds of a run by one and by several threads
 * (minimum and median over rounds), and the ratio of each.
 */
import { performance } from "node:perf_hooks";
import { pathToFileURL } from "node:url";

const [, , folder, threads = "2", rounds = "60"] = process.argv;
const { Model, inputs } = await import(pathToFileURL(`${folder}/index.js`));
const fill = ({ name, type, length }) => [name, new globalThis[type](length).map((_, k) => ((k * 7919) % 201) / 100 - 1)];
const named = Object.fromEntries(inputs.map(fill));
const models = [await Model.load(), await Model.load(undefined, { threads: Number(threads) })];
const milliseconds = [[], []];
let runs = 1;
for (let round = -20; round < Number(rounds); ++round) {
  models.forEach((model, k) => {
    const begin = performance.now();
    for (let run = 0; run < runs; ++run) model.run(named);
    const time = (performance.now() - begin) / runs;
    // rounds below 0 let node compile the modules
    if (round >= 0) milliseconds[k].push(time);
    else runs = Math.max(1, Math.ceil(2 / time));
  });
}
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
const facts = milliseconds.map((values) => ({ min: Math.min(...values), median: median(values) }));
const ratio = { min: facts[0].min / facts[1].min, median: facts[0].median / facts[1].median };
console.log(JSON.stringify({ one: facts[0], several: facts[1], threads: models[1].threads, ratio }));
models[1].close();
