"""Folders of labelled images: CLASS/ or CLIENT/CLASS/, in all of the folder or in its training and test set."""

import collections
import pathlib

from tfp_bfl import files
from tfp_bfl.data.images import FORMATS, check_all_read, image_files, is_hidden, read_images, shape_of
from tfp_bfl.data.names import as_names, as_text, canonical
from tfp_bfl.data.read_examples import Examples
from tfp_bfl.data.sizes import Size
from tfp_bfl.errors import InvalidArgument, shown

_TRAIN = ("train", "training")
_TEST = ("test", "testing", "val", "valid", "validation")
# Of images that this library does not read.
_OTHER_FORMATS = (".avif", ".dcm", ".heic", ".jp2", ".nii", ".tif", ".tiff", ".webp")


def splits(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the subfolders "train" and "test" of a folder, or "train" alone; {} where it has none of them.

    "Train", "training" and the like are read as "train"; "test", or without it "val", "valid" and "validation", as
    "test". A subfolder that holds images directly is a class.
    """
    inside = {p for p in folder.iterdir() if p.is_dir() and not is_hidden(pathlib.Path(p.name))}
    named = lambda names: [p for name in names for p in sorted(inside) if canonical(p.name).casefold() == name]
    train, test = named(_TRAIN), named(_TEST)
    has_images = lambda p: any(x.suffix.lower() in FORMATS for x in p.iterdir())
    if not (train or test) or any(map(has_images, [*train, *test])):
        return {}
    found = [*train[:1], *test[:1]]
    if not train:
        raise InvalidArgument(f"{files.name(folder)} has {found[0].name}/ but no train/: give both, or rename it.")
    if len(train) > 1 or (len(test) > 1 and canonical(test[0].name).casefold() == canonical(test[1].name).casefold()):
        first, second = train[:2] if len(train) > 1 else test[:2]
        raise InvalidArgument(f"{files.name(folder)} has both {first.name}/ and {second.name}/: leave one out.")
    others = sorted(p.name for p in inside - {*train, *test} if next(image_files(p), None))
    if others:
        names = " and ".join(f"{p.name}/" for p in found)
        what = f"{files.name(folder)} has {shown(others[0])} beside {names}"
        raise InvalidArgument(f"{what}: move it into train/ or test/, or leave it out.")
    return dict(zip(("train", "test"), found))


def read_folder(folder: pathlib.Path, size: Size | None = None) -> tuple[Examples, Examples | None]:
    """Read the images of a folder, with the names of their classes and clients, and its test set if it has one.

    They are resized to `size`, or must all have the size of the first.
    """
    parts = splits(folder)
    if not parts:
        return _read(folder, size), None
    return _read(parts["train"], size), _read(parts["test"], size) if "test" in parts else None


def _read(folder: pathlib.Path, size: Size | None) -> Examples:
    paths = sorted(image_files(folder), key=lambda p: (*as_names(p.relative_to(folder).parts), p))
    depths = {len(p.relative_to(folder).parts) for p in paths}
    if depths not in ({2}, {3}):
        has = f"{len(paths)} elsewhere or in both" if paths else "none"
        must = "must hold images in CLASS/, or all of them in CLIENT/CLASS/"
        raise InvalidArgument(f"The folder {files.name(folder)} {must}, and has {has}.")
    seen = (p.suffix.lower() for p in folder.rglob("*") if not is_hidden(p.relative_to(folder)))
    others = collections.Counter(suffix for suffix in seen if suffix in _OTHER_FORMATS)
    if others:
        counts = ", ".join(f"{number} {suffix}" for suffix, number in sorted(others.items()))
        what = f"The folder {files.name(folder)} has images that can't be read, {counts}"
        raise InvalidArgument(f"{what}: convert them to PNG, or leave them out.")
    nameless = next((p for p in paths if "" in as_names(p.relative_to(folder).parts[:-1])), None)
    if nameless is not None:
        raise InvalidArgument(f"The folder {shown(str(nameless.parent))} has a name of blanks alone: rename it.")
    with files.open_regular(paths[0], "image") as file:
        first = shape_of(file, files.name(paths[0]))
    images = read_images(paths, (*(size or first[:2]), first[2]), resize=size is not None)
    check_all_read(images.failures, size)
    labels, owners = (as_text([p.parts[-depth] for p in paths]) for depth in (2, 3))
    return Examples(images.pixels, labels, owners if depths == {3} else None)
