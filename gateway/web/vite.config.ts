import { defineConfig } from "vite";

// Two pages: that of sessions, and the dashboard. `base` is relative, so that the page also works below a path of another server.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    // The page brings no polyfill that would have to be an inline script.
    modulePreload: { polyfill: false },
    target: "es2022",
    // What the page is built of besides our own files, with its licences.
    license: { fileName: "licences.md" },
    rolldownOptions: { input: ["index.html", "dashboard.html"] },
  },
  // `npm run dev` shows the page while it is written; a gateway on its usual port answers.
  server: {
    proxy: {
      "/api": "http://127.0.0.1:7860",
      "/ws": { target: "ws://127.0.0.1:7860", ws: true },
    },
  },
});
