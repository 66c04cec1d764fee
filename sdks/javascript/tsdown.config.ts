import { defineConfig, type UserConfig } from "tsdown";

const SHARED: UserConfig = {
  entry: {
    index: "src/index.ts",
    errors: "src/error_classes.ts",
    testing: "src/testing/index.ts",
    "node-cron": "src/integrations/node_cron.ts",
    nestjs: "src/integrations/nestjs.ts",
  },
  format: ["esm", "cjs"],
  target: "es2022",
  fixedExtension: true,
  clean: true,
  logLevel: "error",
};

const config: UserConfig[] = defineConfig([
  {
    ...SHARED,
    platform: "neutral",
    // `await using` on a lease must not ask its users to change their `lib`.
    dts: true,
    banner: { dts: '/// <reference lib="esnext.disposable" />' },
  },
  // The build for the export condition `node`. It has the same types.
  {
    ...SHARED,
    platform: "node",
    outDir: "dist/node",
    clean: false,
    dts: false,
    plugins: [
      {
        name: "platform",
        resolveId: {
          order: "pre",
          handler(source, importer) {
            return source.endsWith("/platform.ts") && importer !== undefined
              ? this.resolve(source.replace("platform.ts", "platform.node.ts"), importer)
              : null;
          },
        },
      },
    ],
  },
]);

export default config;
