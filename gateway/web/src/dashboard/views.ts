// The views by name. A view fills a place and follows the scheduler until it is told to stop.

import { show as showDevices } from "./devices.ts";
import { show as showFinished } from "./finished.ts";
import { show as showJob } from "./job.ts";
import { show as showOpening } from "./opening.ts";
import { show as showQueue } from "./queue.ts";
import type { ViewName } from "./router.ts";
import { show as showSessions } from "./sessions.ts";
import { show as showSubmit } from "./submit.ts";
import { show as showUsage } from "./usage.ts";

export type Show = (place: HTMLElement, parameter: string, until: AbortSignal) => void;

export const SHOW: Readonly<Record<ViewName, Show>> = {
  devices: showDevices,
  queue: showQueue,
  finished: showFinished,
  usage: showUsage,
  sessions: showSessions,
  submit: showSubmit,
  job: showJob,
  open: showOpening,
};
