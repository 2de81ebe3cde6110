// Where one is: the part of the address behind "#". "#/job/12" is the view "job" with the parameter "12".

export const VIEWS = ["devices", "queue", "finished", "usage", "sessions", "submit", "job", "open"] as const;
export type ViewName = (typeof VIEWS)[number];

export interface Route {
  readonly view: ViewName;
  readonly parameter: string;
}

/** Where the dashboard begins. */
export const HOME: Route = { view: "devices", parameter: "" };

/** The route of an address's hash; the beginning for one that is none. */
export function routeOf(hash: string): Route {
  const [, name = "", ...rest] = hash.replace(/^#/, "").split("/");
  const view = VIEWS.find((each) => each === name);
  if (view === undefined) return HOME;
  let parameter = rest.join("/");
  try {
    parameter = decodeURIComponent(parameter);
  } catch {
    // Not one that a link of ours has made: as it stands.
  }
  return { view, parameter };
}

/** The address of a view, for links. */
export function addressOf(view: ViewName, parameter = ""): string {
  return parameter === "" ? `#/${view}` : `#/${view}/${encodeURIComponent(parameter)}`;
}
