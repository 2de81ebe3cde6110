// The dashboard. Read shell.ts first: it lets people in and shows one view at a time (views.ts).

import { Shell } from "./shell.ts";

new Shell().start();
