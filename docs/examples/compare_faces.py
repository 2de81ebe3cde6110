"""In which pictures somebody is: two served models, one asked after the other.

    pip install 'gpufleet[examples]'
    gpuctl serve faces:Detector --predict
    gpuctl serve faces:Embedder --predict
    python compare_faces.py who.jpg photos/*.jpg

The first model finds faces, and the second one makes a vector of each that is cut out there; the surest face of the
first picture is looked for in all others. Pictures that cannot be read cost themselves alone.
"""

import sys
from pathlib import Path

import numpy as np
from faces import SAME_MAX, cut_out

from gpufleet.client import InferenceClient


def faces_in(files: list[bytes], detector: InferenceClient, embedder: InferenceClient) -> list[list[dict] | str]:
    """For each file its faces, each with its vector, or what is wrong with it."""
    found = detector.predict(files)
    pictures = [result.value if result.is_ok else result.error.message for result in found]
    faces = [
        (file, face)
        for file, picture in zip(files, pictures, strict=True)
        if not isinstance(picture, str)
        for face in picture
    ]
    vectors = embedder.predict([cut_out(file, face["box"]) for file, face in faces])
    for (_, face), vector in zip(faces, vectors, strict=True):
        face["vector"] = vector.unwrap()
    return pictures


if __name__ == "__main__":
    names = sys.argv[1:]
    with InferenceClient(model="Detector") as detector, InferenceClient(model="Embedder") as embedder:
        wanted, *others = faces_in([Path(name).read_bytes() for name in names], detector, embedder)
    if isinstance(wanted, str) or not wanted:
        sys.exit(f"{names[0]}: {wanted or 'no face was found'}")
    seen = []
    for name, picture in zip(names[1:], others, strict=True):
        if isinstance(picture, str):
            print(f"{name}: {picture}", file=sys.stderr)
            continue
        for face in picture:
            seen.append((float(np.linalg.norm(np.subtract(wanted[0]["vector"], face["vector"]))), name, face["box"]))
    for apart, name, box in sorted(seen):
        print(f"{apart:5.2f}  {'the same' if apart < SAME_MAX else 'another'}  {name} at {box}")
