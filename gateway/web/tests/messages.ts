import type { Partly } from "../src/generated/messages.ts";

/** A message of which only what matters to a test is there. */
export function partly<T>(fields: Partly<NoInfer<T>>): T {
  return fields as T;
}
