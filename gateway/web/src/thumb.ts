// A small picture of each model: the last frame that this tab saw of it, else the one that ships with the model. What
// somebody drew is theirs: it is kept in their own tab, and shown to nobody else.

const PREFIX = "gpufleet.picture.";

/** Pixels across of what is kept. */
const WIDTH = 320;
const QUALITY = 0.75;

/** Keep what a canvas shows as the last frame of a model. */
export function keepPicture(model: string, shown: HTMLCanvasElement): void {
  const small = document.createElement("canvas");
  small.width = WIDTH;
  small.height = Math.max(1, Math.round((WIDTH * shown.height) / shown.width));
  small.getContext("2d")?.drawImage(shown, 0, 0, small.width, small.height);
  tryTo(() => sessionStorage.setItem(PREFIX + model, small.toDataURL("image/jpeg", QUALITY)));
}

/** Forget the pictures of models that are not served any more. */
export function keepOnly(models: ReadonlySet<string>): void {
  tryTo(() => {
    for (const key of Object.keys(sessionStorage)) {
      if (key.startsWith(PREFIX) && !models.has(key.slice(PREFIX.length))) sessionStorage.removeItem(key);
    }
  });
}

/** What there is to show of a model; `tag` names the picture that ships with it, "" without one. Null: nothing. */
export async function pictureOf(model: string, tag: string): Promise<Blob | null> {
  const own = kept(model);
  if (own !== null) return own;
  if (tag === "") return null;
  const answer = await fetch(`api/v1/lobby/${encodeURIComponent(model)}/picture?${tag}`).catch(() => null);
  return answer?.ok === true ? answer.blob() : null;
}

/** What tells one picture of a model from the next. */
export function pictureName(model: string, tag: string): string {
  const own = kept(model);
  return own === null ? tag : `own ${own.size}`;
}

/** Draw a picture into a canvas of its own size; one that cannot be read leaves it as it is. */
export async function draw(picture: Blob, canvas: HTMLCanvasElement): Promise<boolean> {
  const bitmap = await createImageBitmap(picture).catch(() => null);
  if (bitmap === null) return false;
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  canvas.getContext("2d")?.drawImage(bitmap, 0, 0);
  bitmap.close();
  return true;
}

function kept(model: string): Blob | null {
  let address: string | null = null;
  tryTo(() => (address = sessionStorage.getItem(PREFIX + model)));
  const base64 = (address as string | null)?.split(",")[1];
  if (base64 === undefined) return null;
  return new Blob([Uint8Array.from(atob(base64), (each) => each.charCodeAt(0))], { type: "image/jpeg" });
}

/** A browser may forbid that anything is kept, or have no room for it. */
function tryTo(action: () => void): void {
  try {
    action();
  } catch (problem) {
    if (!(problem instanceof DOMException)) throw problem;
  }
}
