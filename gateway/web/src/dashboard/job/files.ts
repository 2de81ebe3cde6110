// What a job left: its files with their sizes and ages, pictures as such, and the beginning of a text.

import { h, show, write } from "../../dom.ts";
import type { Job, RankFiles } from "../../generated/messages.ts";
import { AWAY, call, CallError, errorIn } from "../api.ts";
import { hasEnded } from "../words.ts";
import "./files.css";
import { addressOfFile, filesOf, isPicture, type LeftFile, rankWords, shownName, TEXT_BYTES_MAX, textOf } from "./left.ts";
import { paced } from "./pace.ts";
import { problemWords, section, Table } from "./parts.ts";
import { size } from "./words.ts";

const READ_MS = 2_000;
const TEXT_MS_MAX = 20_000;
/** Files that are asked for at once; pictures are found among those that are here. */
const PAGE = 1_000;
/** So many more of them are listed at a time. */
const ROWS = 100;
/** Pictures that are shown. */
const PICTURES_MAX = 12;
/** What is said of each rank, and of what it could not leave. */
const NOTES_MAX = 20;

export class Files {
  readonly element: HTMLElement;
  private readonly notes = h("ul", { class: "left-notes" });
  private readonly table = new Table("Files that the job left", ["File", "Size", "Beginning"], 1);
  private readonly count = h("p", { class: "hint", role: "status" });
  private readonly more = h("button", { class: "quiet", onclick: () => void this.longer() }, "More files");
  private readonly pictures = h("ul", { class: "pictures", "aria-label": "Pictures that the job left" });
  private readonly title = h("span", {});
  private readonly text = h("pre", { tabindex: "0", "aria-label": "Beginning of the file" });
  private readonly preview = h("figure", { class: "preview" },
    h("figcaption", {}, this.title, h("button", { class: "quiet", onclick: () => show(this.preview, false) }, "Close")), this.text);
  private readonly ask: () => void;
  private ranks: readonly RankFiles[] = [];
  private files: readonly LeftFile[] = [];
  private token = "";
  private rows = ROWS;
  private known = "";
  /** The file whose beginning is shown, or asked for. */
  private wanted = "";

  constructor(private readonly id: number, private readonly until: AbortSignal) {
    this.element = section("files", "Files it left", this.notes, this.pictures, this.table.element, this.count, this.more, this.preview);
    for (const each of [this.element, this.pictures, this.table.element, this.count, this.more, this.preview]) show(each, false);
    this.ask = paced(() => this.read(), READ_MS, until);
  }

  update(job: Job, now: number): void {
    this.tell(now);
    const isDue = job.spec.results.length > 0 && (hasEnded(job.state) || job.attempts.length > 1);
    const known = isDue ? `${job.state}/${job.attempts.length}/${job.results?.state}/${job.results?.message}` : "";
    if (known === this.known) return;
    this.known = known;
    if (isDue) this.ask();
  }

  private async read(): Promise<void> {
    try {
      const { ranks, next_page_token: token } = await call("ListFiles", { job_id: String(this.id), page_size: PAGE });
      if (this.until.aborted) return;
      this.rows = ROWS;
      this.take(ranks, filesOf(ranks), token);
    } catch (problem) {
      this.notes.replaceChildren(h("li", {}, problemWords(problem)));
      show(this.element, true);
      this.known = "";
    }
  }

  /** List more of the files: of those that are here, or of the next page. What is stored never changes. */
  private async longer(): Promise<void> {
    this.more.disabled = true;
    try {
      let { ranks, files, token } = this;
      if (files.length < this.rows + ROWS && token !== "") {
        const told = await call("ListFiles", { job_id: String(this.id), page_size: PAGE, page_token: token });
        if (this.until.aborted || token !== this.token) return;
        ranks = told.ranks;
        files = [...files, ...filesOf(ranks)];
        token = told.next_page_token;
      }
      this.rows += ROWS;
      this.take(ranks, files, token);
    } catch (problem) {
      write(this.count, problemWords(problem));
      this.known = ""; // a scheduler that was started again since knows no token of before: it is listed anew
    } finally {
      this.more.disabled = false;
    }
  }

  private take(ranks: readonly RankFiles[], files: readonly LeftFile[], token: string): void {
    this.ranks = ranks;
    this.files = files;
    this.token = token;
    const pictures = files.filter(isPicture).slice(0, PICTURES_MAX);
    this.pictures.replaceChildren(...pictures.map((each) => this.picture(each)));
    show(this.pictures, pictures.length > 0);
    this.table.fill(files.slice(0, this.rows).map((each) => [this.link(each), size(each.bytes), this.opener(each)]));
    show(this.table.element, files.length > 0);
    const count = ranks.reduce((sum, { file_count: of }) => sum + of, 0);
    write(this.count, `${Math.min(this.rows, files.length).toLocaleString("en")} of ${count.toLocaleString("en")} files are listed.`);
    for (const each of [this.count, this.more]) show(each, this.rows < files.length || token !== "");
    this.notes.replaceChildren();
    this.tell(Date.now() / 1_000);
  }

  /** What is said of the ranks: times go on. */
  private tell(now: number): void {
    show(this.element, this.ranks.length > 0 || this.notes.childElementCount > 0);
    const told = this.ranks.flatMap((rank) => [
      rankWords(rank, this.ranks.length > 1, now), ...rank.problems.map((each) => `Not among them: ${shownName(each)}`),
    ]);
    if (told.length === 0) return;
    if (told.length > NOTES_MAX) told.splice(NOTES_MAX, told.length, `${told.length - NOTES_MAX} more: gpuctl files ${this.id}`);
    while (this.notes.childElementCount < told.length) this.notes.append(h("li", {}));
    [...this.notes.children].forEach((each, index) => write(each as HTMLElement, told[index] ?? ""));
  }

  private link(file: LeftFile): HTMLElement {
    const name = file.path.slice(file.path.lastIndexOf("/") + 1);
    const of = this.ranks.length > 1 ? `rank ${file.rank}: ` : "";
    return h("a", { class: "file", href: addressOfFile(this.id, file), download: name }, of + shownName(file.path));
  }

  private picture(file: LeftFile): HTMLElement {
    const name = shownName(file.path);
    const address = addressOfFile(this.id, file);
    const image = h("img", { src: address, alt: name, loading: "lazy", decoding: "async", onerror: () => image.replaceWith(h("span", { class: "hint" }, "cannot be shown")) });
    return h("li", {}, h("a", { href: address, target: "_blank", rel: "noopener" }, image), h("span", { class: "hint" }, name));
  }

  private opener(file: LeftFile): Node | string {
    if (file.bytes === 0 || isPicture(file)) return "";
    return h("button", { class: "quiet", "aria-label": `Show ${shownName(file.path)}`, onclick: () => void this.open(file) }, "Show");
  }

  private async open(file: LeftFile): Promise<void> {
    const address = addressOfFile(this.id, file);
    this.wanted = address;
    write(this.title, `${shownName(file.path)} …`);
    write(this.text, "");
    show(this.preview, true);
    let said: string;
    let isText = false;
    try {
      const text = textOf(await beginningOf(address, this.until));
      isText = text !== undefined;
      said = text ?? "This is no text. Download it by its name.";
    } catch (problem) {
      if (this.until.aborted) return;
      said = problemWords(problem);
    }
    if (this.wanted !== address) return;
    const part = isText && file.bytes > TEXT_BYTES_MAX ? `: the first ${size(TEXT_BYTES_MAX)} of ${size(file.bytes)}` : "";
    write(this.title, `${shownName(file.path)}${part}`);
    write(this.text, said);
    this.preview.scrollIntoView({ block: "nearest" });
  }
}

/** The first bytes of a file, TEXT_BYTES_MAX at most. Throws CallError. */
async function beginningOf(address: string, until: AbortSignal): Promise<Uint8Array> {
  const enough = new AbortController();
  const signal = AbortSignal.any([until, enough.signal, AbortSignal.timeout(TEXT_MS_MAX)]);
  try {
    const response = await fetch(address, { headers: { Range: `bytes=0-${TEXT_BYTES_MAX - 1}` }, signal });
    if (!response.ok || response.body === null) throw await errorIn(response);
    return await firstOf(response.body.getReader());
  } catch (problem) {
    throw problem instanceof CallError ? problem : new CallError(AWAY, 0);
  } finally {
    // A proxy between may send more than was asked for.
    enough.abort();
  }
}

async function firstOf(reader: ReadableStreamDefaultReader<Uint8Array>): Promise<Uint8Array> {
  const bytes = new Uint8Array(TEXT_BYTES_MAX);
  let length = 0;
  while (length < TEXT_BYTES_MAX) {
    const { value, done } = await reader.read();
    if (done) break;
    const part = value.subarray(0, TEXT_BYTES_MAX - length);
    bytes.set(part, length);
    length += part.length;
  }
  return bytes.subarray(0, length);
}
