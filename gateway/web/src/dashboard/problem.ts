/** What the gateway says of an error. */
export interface Problem {
  /** A stable reason, such as "NOT_YOUR_JOB"; "GATEWAY_UNREACHABLE" where nothing answered. */
  readonly reason: string;
  readonly message: string;
  readonly next_step: string;
  /** The first wrong field's path in the request; empty where it is none. */
  readonly field: string;
  readonly fields?: readonly { readonly field: string; readonly why: string }[];
}
