"""The artifact file: a zip with a manifest and its members, whole or not there at all.

Writing goes to a temporary name in the same folder and is renamed, so no reader ever sees half a file. Loading checks the SHA-256 of
every member against the manifest: a truncated, altered or foreign file is refused with a reason.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import pathlib
import weakref
import zipfile

from . import manifest as manifest_module
from .errors import ArtifactError
from .whole_file import write_whole

MANIFEST = "manifest.json"


_living: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def by_digest(digest: str) -> Artifact | None:
    """An artifact of these contents that is in use in this process."""
    return _living.get(digest)


class Artifact:
    """A loaded artifact: `manifest` (dict, validated), `members` ({name: bytes}), `path` (where it came from, for messages).

    Two artifacts are equal only if they are one object; `digest` tells contents apart.
    """

    def __init__(self, manifest: dict, members: dict[str, bytes], path: str = "<memory>"):
        self.manifest, self.members, self.path = manifest, members, path
        self.digest = hashlib.sha256(_manifest_bytes(manifest)).hexdigest()
        self._program = None
        self._backward = None
        _living[self.digest] = self

    name = property(lambda self: self.manifest["name"])
    target = property(lambda self: self.manifest["target"])
    semantics = property(lambda self: self.manifest["semantics"])

    @property
    def program(self):
        """The manifest with its expressions compiled to closures (made once)."""
        if self._program is None:
            from .plan import Program

            self._program = Program(self.manifest, self.path)
        return self._program

    @property
    def direction(self) -> str:
        """"fwd", "bwd", or "both": a forward that has its backward inside."""
        return self.manifest["direction"]

    @property
    def backward(self) -> Artifact | None:
        """The artifact of the backward kernels: itself, or the one inside an artifact of both directions, or None."""
        if self.direction == "bwd":
            return self
        if self._backward is None and self.direction == "both":
            inner = self.manifest["backward"]
            self._backward = Artifact(inner, {name: self.members[name] for name in inner["members"]}, self.path)
        return self._backward

    @property
    def forward_semantics(self) -> dict | None:
        """What the forward computes; None for a backward that does not say what it was derived from."""
        return self.manifest.get("forward") if self.direction == "bwd" else self.semantics

    @functools.cached_property
    def adds_in_any_order(self) -> bool:
        """Whether kernels add floats to global memory by atomics that no counters of turns order: bits may differ between runs then."""
        code = b"".join(data for name, data in self.members.items() if name.endswith(".ptx"))
        lines = [line for line in code.splitlines() if b"red." in line or b"cp.reduce" in line]  # `red` of floats, or a bulk copy that adds
        adds = any(b".add" in line and (b".f32" in line or b"cp.reduce" in line) for line in lines)
        return adds and not any(w["name"].endswith("_turns") for w in self.manifest["workspaces"])

    def text(self, suffix: str) -> str:
        """The first member ending in `suffix` ('.ptx', '.cute.py', '.attn.mlir', ...) as text. Raises `ArtifactError` if there is none."""
        for name, data in self.members.items():
            if name.endswith(suffix):
                return data.decode()
        raise ArtifactError(f"no member ends with {suffix!r}", where=self.path, why=f"the members are {', '.join(self.members)}")

    def save(self, path) -> None:
        """Write it as NAME.fa4c, all or nothing. Raises OSError."""
        write(path, self.manifest, self.members)

    def __repr__(self) -> str:
        m = self.manifest
        return f"<fa4c artifact {m['name']} {m['direction']} {m['target']} {m['dtype']} {m.get('head_dims')} from {self.path}>"


def build(manifest: dict, members: dict[str, bytes | str], path: str = "<memory>") -> Artifact:
    """An artifact in memory from the compiler's output; fills in the members' hashes and checks the schema."""
    data = {name: value.encode() if isinstance(value, str) else bytes(value) for name, value in members.items()}
    hashes = {name: hashlib.sha256(value).hexdigest() for name, value in sorted(data.items())}
    complete = dict(manifest, members=hashes)
    if isinstance(manifest.get("backward"), dict):
        inner = manifest["backward"]
        complete["backward"] = dict(inner, members={name: hashes.get(name, "") for name in inner.get("members", {})})
    manifest_module.validate(complete, path)
    return Artifact(complete, data, path)


def write(path, manifest: dict, members: dict[str, bytes | str]) -> None:
    """Write NAME.fa4c: `members` {name: bytes or text}, whose hashes replace `manifest["members"]`. Same input, same bytes."""
    path = pathlib.Path(path)
    whole = build(manifest, members, str(path))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in [(MANIFEST, _manifest_bytes(whole.manifest)), *sorted(whole.members.items())]:
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    try:
        write_whole(path, buffer.getvalue())
    except OSError as error:
        raise ArtifactError(
            f"cannot write here: {error.strerror}", where=path, fix="name a folder that exists and can be written"
        ) from None


def load(path) -> Artifact:
    """Read and check NAME.fa4c. Raises `ArtifactError` (no such file, no zip, truncated, altered, foreign) or `ManifestError` (schema)."""
    where = str(path)
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read the file: {error.strerror}", where=where) from None
    return loads(data, where)


def loads(data: bytes, where: str = "<memory>") -> Artifact:
    """The same from bytes."""
    again = "compile the variant again, or copy the file again"
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile:
        kind = "is truncated" if data[:2] == b"PK" else "is no fa4c artifact"
        raise ArtifactError(
            f"the file {kind} ({len(data)} bytes)", where=where, why="an artifact is a zip file with its directory at the end", fix=again
        ) from None
    with archive:
        contents = {}
        for name in archive.namelist():
            try:
                contents[name] = archive.read(name)
            except Exception as error:  # zlib, CRC, encryption: zipfile raises many kinds
                raise ArtifactError(f"member {name!r} cannot be read: {error}", where=where, why="the file is damaged", fix=again) from None
    if MANIFEST not in contents:
        raise ArtifactError(
            f"the zip holds no {MANIFEST}", where=where, why=f"it holds {', '.join(sorted(contents)[:5]) or 'nothing'}: no fa4c artifact"
        )
    try:
        manifest = json.loads(contents.pop(MANIFEST))
    except ValueError as error:
        raise ArtifactError(f"{MANIFEST} is no JSON: {error}", where=where, fix=again) from None
    manifest_module.validate(manifest, where)
    _check_hashes(manifest["members"], contents, where, again)
    return Artifact(manifest, contents, where)


def _check_hashes(hashes: dict[str, str], contents: dict[str, bytes], where: str, again: str) -> None:
    for name, digest in hashes.items():
        if name not in contents:
            raise ArtifactError(f"member {name!r} is missing", where=where, why="the manifest lists it", fix=again)
        actual = hashlib.sha256(contents[name]).hexdigest()
        if actual != digest:
            raise ArtifactError(
                f"member {name!r} was altered: SHA-256 {actual[:12]}..., the manifest says {digest[:12]}...", where=where, fix=again
            )
    extra = sorted(set(contents) - set(hashes))
    if extra:
        raise ArtifactError(
            f"member {extra[0]!r} is not listed in the manifest", where=where, why="every file of an artifact has its hash there", fix=again
        )


def _manifest_bytes(manifest: dict) -> bytes:
    return (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
