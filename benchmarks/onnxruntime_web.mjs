// SPDX-License-Identifier: Apache-2.0
/*
 * Measures an npm package that aotc made beside onnxruntime-web, in turns in one process of node, with one thread each.
 *
 *   aotc compile net.onnx --target wasm32 --package npm -o /tmp/net-npm
 *   cd /tmp/bench && npm install onnxruntime-web && cp CHECKOUT/benchmarks/onnxruntime_web.mjs .
 *   node onnxruntime_web.mjs /tmp/net-npm net.onnx [ROUNDS]
 *
 * The model has inputs of float32 with known shapes.  Prints one JSON object: microseconds of a run (minimum and median
 * over rounds of 20 runs), the median of the ratios of the rounds, milliseconds to load a model and run it once, and
 * the largest difference of the outputs.
 */
import fs from "node:fs";
import { performance } from "node:perf_hooks";
import { pathToFileURL } from "node:url";

const [, , folder, onnx, rounds = "60"] = process.argv;
const RUNS = 20;

let start = performance.now();
const { Model, inputs } = await import(pathToFileURL(`${folder}/index.js`));
const data = inputs.map(({ length }) => Float32Array.from({ length }, (_, k) => ((k * 7919) % 201) / 100 - 1));
const named = Object.fromEntries(inputs.map(({ name }, k) => [name, data[k]]));
const model = await Model.load();
const ours = model.run(named);
const startMs = { aotc: performance.now() - start };

start = performance.now();
const ort = await import("onnxruntime-web/wasm");
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(fs.readFileSync(onnx), { executionProviders: ["wasm"] });
const tensor = (name, k) => [name, new ort.Tensor("float32", data[k], inputs[k].shape)];
const feeds = Object.fromEntries(session.inputNames.map(tensor));
const theirs = await session.run(feeds);
startMs.ort = performance.now() - start;

const pairs = session.outputNames.map((name, k) => [Object.values(ours)[k], theirs[name].data]);
const difference = Math.max(...pairs.flatMap(([a, b]) => Array.from(a, (value, k) => Math.abs(value - Number(b[k])))));
const microseconds = { aotc: [], ort: [] };
for (let round = -10; round < Number(rounds); ++round) {
  const begin = performance.now();
  for (let k = 0; k < RUNS; ++k) model.run(named);
  const middle = performance.now();
  for (let k = 0; k < RUNS; ++k) await session.run(feeds);
  const end = performance.now();
  // rounds below 0 let node compile the modules
  if (round < 0) continue;
  microseconds.aotc.push((1e3 * (middle - begin)) / RUNS);
  microseconds.ort.push((1e3 * (end - middle)) / RUNS);
}
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
const facts = (values) => ({ min: Math.min(...values), median: median(values) });
const ratio = median(microseconds.aotc.map((value, k) => value / microseconds.ort[k]));
const result = { aotc: facts(microseconds.aotc), ort: facts(microseconds.ort), ratio, startMs, difference };
console.log(JSON.stringify(result));
