import { defineConfig, type ViteUserConfig } from "vitest/config";

const config: ViteUserConfig = defineConfig({
  test: {
    include: ["tests/**/*.test.ts"],
    dangerouslyIgnoreUnhandledErrors: false,
    testTimeout: 60_000,
  },
});

export default config;
