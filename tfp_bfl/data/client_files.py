"""Clients with their examples in files, one for each: read where they are used, so that no message holds them."""

import functools
import hashlib
import json
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, PositiveInt, ValidationError

from tfp_bfl.data.clients import ClientData, ClientExamples, Clients
from tfp_bfl.data.parts import Schema
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.files.arrays import write_arrays

INDEX = "clients.json"
_VERSION = 1
_IN_A_FOLDER = 1000


class Reference(NamedTuple):
    """Clients by where their examples are: the folder of a `ClientFiles`, its digest, and the clients' numbers."""

    folder: str
    digest: str
    numbers: tuple[int, ...]


class _Index(BaseModel):
    version: int
    digest: str
    source: Schema
    sizes: Annotated[list[PositiveInt], Field(min_length=1)]


class ClientFiles(ClientData):
    """The clients that `write_clients` has written to a folder.

    `simulate` takes them with every engine. Here and on the workers of a cluster, which must see the folder under the
    same path, a client's examples are read when it takes part and not before.

    Attributes:
      folder: its absolute path.
      source: what the examples look like, a `Schema`.
      digest: of the clients and their labels.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = pathlib.Path(folder).absolute()
        index = _index(self.folder)
        self.source, self.digest, self._sizes = index.source, index.digest, np.array(index.sizes, np.int64)

    def __repr__(self) -> str:
        return f"<ClientFiles of {self.source.name}: {self.num_clients} in {self.folder}>"

    @property
    def sizes(self) -> np.ndarray:
        """Examples of each client, int64 [K]."""
        return self._sizes

    @property
    def description(self) -> str:
        """The sites and their sizes, as a checkpoint records them."""
        return f"{self.num_clients} of {self.source.name} in files ({self.digest[:8]})"

    def examples(self, k: int) -> ClientExamples:
        """Return the examples of client k as arrays."""
        path = self.folder / _path(self._checked(k))
        try:
            with np.load(path, allow_pickle=False) as file:
                features, labels = file["features"], file["labels"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidArgument(f"{path} of client {k} can't be read ({type(error).__name__}): write it.") from None
        spec = self.element_spec
        fits = (
            (len(features),) == labels.shape == (self.sizes[k],)
            and features.shape[1:] == spec.features.shape[1:]
            and [features.dtype, labels.dtype] == [x.dtype.as_numpy_dtype for x in spec[1:]]
        )
        if not fits:
            raise InvalidArgument(f"{path} holds arrays {features.shape} and {labels.shape}, other than {INDEX} says.")
        return ClientExamples(np.full(len(labels), k, np.int32), features, labels)

    def references(self, chosen: Iterable[int], most: int) -> list[Reference]:
        """Return `shares`, by where they are."""
        return [Reference(str(self.folder), self.digest, tuple(part)) for part in self.shares(chosen, most)]


def write_clients(clients: Clients, folder: str | os.PathLike[str]) -> ClientFiles:
    """Write each client's examples to a separate file, and an index of all.

    The folder is new or empty: what is written half is gone when the call has ended. One that holds these clients
    already is left as it is.

        files = bfl.data.write_clients(clients, "/shared/clients")
        bfl.simulate(process, files, rounds=60, engine="ray")
    """
    folder = pathlib.Path(folder).absolute()
    digest = _digest(clients)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not (folder / INDEX).is_file() or ClientFiles(folder).digest != digest:
            raise InvalidArgument(f"{folder} holds something else than these clients: name a new folder.")
        return ClientFiles(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as unfinished:
        written = pathlib.Path(unfinished) / "clients"
        for k in range(clients.num_clients):
            path, (_, features, labels) = written / _path(k), clients.examples(k)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_arrays(path, {"features": features, "labels": labels})
        source = clients.source
        of_data = source.class_names, source.columns, source.target
        schema = Schema(f"{source.name}/{source.split}", source.element_shape, source.is_image, *of_data)
        index = _Index(version=_VERSION, digest=digest, source=schema, sizes=clients.sizes.tolist())
        (written / INDEX).write_text(index.model_dump_json() + "\n", encoding="utf-8")
        # Others than this user may be the ones who read.
        umask = os.umask(0)
        os.umask(umask)
        written.chmod(0o777 & ~umask)
        if folder.exists():
            folder.rmdir()
        written.rename(folder)
    _index.cache_clear()
    return ClientFiles(folder)


def _path(k: int) -> str:
    """Return the path of a client's file in the folder: no folder has more than a thousand."""
    return f"{k // _IN_A_FOLDER:03d}/client-{k:06d}.npz"


def _digest(clients: Clients) -> str:
    sha = hashlib.sha256(json.dumps([clients.source.name, clients.sizes.tolist()]).encode())
    for part in clients.indices:
        sha.update(np.ascontiguousarray(clients.source.labels[part]).tobytes())
        sha.update(np.ascontiguousarray(clients.source.features[part]).tobytes())
    return sha.hexdigest()


@functools.lru_cache(maxsize=16)
def _index(folder: pathlib.Path) -> _Index:
    path = folder / INDEX
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        what = f"{folder} holds no clients here: it has no {INDEX} that can be read. Write them with data.write_clients"
        raise InvalidArgument(f"{what}, to a folder that every machine sees under this path.") from None
    version = content.get("version", _VERSION) if isinstance(content, dict) else _VERSION
    if version != _VERSION:
        raise InvalidArgument(f"{path} is of version {shown(version)}, but this library reads {_VERSION}.")
    try:
        return _Index.model_validate(content)
    except ValidationError:
        raise InvalidArgument(f"{path} is not an index of data.write_clients: write the clients anew.") from None
