import { defineConfig } from "vite";

// The page is served by the node from memory; nothing is inlined, as its policy forbids inline scripts and data URLs.
export default defineConfig({
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    outDir: "../broker/http/page",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    target: "es2022",
    modulePreload: { polyfill: false },
  },
});
