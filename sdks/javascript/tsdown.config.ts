import { defineConfig, type UserConfig } from "tsdown";

const config: UserConfig = defineConfig({
  entry: { index: "src/index.ts", testing: "src/testing/index.ts" },
  format: ["esm", "cjs"],
  platform: "neutral",
  target: "es2022",
  dts: true,
  fixedExtension: true,
  clean: true,
  logLevel: "error",
  // `await using` on a lease must not ask its users to change their `lib`.
  banner: { dts: '/// <reference lib="esnext.disposable" />' },
});

export default config;
