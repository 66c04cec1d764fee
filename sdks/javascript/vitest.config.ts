import { defineConfig, type ViteUserConfig } from "vitest/config";

const config: ViteUserConfig = defineConfig({
  // As in the build for Node.
  resolve: { alias: [{ find: /^(.*\/)platform\.ts$/, replacement: "$1platform.node.ts" }] },
  test: {
    include: ["tests/**/*.test.ts"],
    dangerouslyIgnoreUnhandledErrors: false,
    testTimeout: 60_000,
  },
});

export default config;
