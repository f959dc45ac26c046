// SPDX-License-Identifier: Apache-2.0
// Runs a program for WASI, which sees all files: node wasi.mjs PROGRAM ARGUMENTS...
import { readFileSync } from "node:fs";
import { WASI } from "node:wasi";
const [program, ...args] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args: [program, ...args], preopens: { "/": "/" }, returnOnExit: true });
const { instance } = await WebAssembly.instantiate(readFileSync(program), wasi.getImportObject());
process.exitCode = wasi.start(instance);
