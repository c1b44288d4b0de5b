"""The artifact file: whole or refused."""

import json
import os
import stat
import threading
import zipfile

import pytest
from runtime_samples import MEMBERS, manifest

from fa4c.runtime import artifact
from fa4c.runtime.errors import ArtifactError, ManifestError
from fa4c.runtime.whole_file import write_whole


@pytest.fixture
def path(tmp_path):
    artifact.write(tmp_path / "sample.fa4c", manifest(), MEMBERS)
    return tmp_path / "sample.fa4c"


def rewrite(path, change):
    """Write the zip again with its members changed by `change(contents)`."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    change(contents)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def test_round_trip_keeps_manifest_and_members(path):
    loaded = artifact.load(path)
    assert {k: v for k, v in loaded.manifest.items() if k != "members"} == {k: v for k, v in manifest().items() if k != "members"}
    assert loaded.members == {k: v.encode() if isinstance(v, str) else v for k, v in MEMBERS.items()}
    assert loaded.text(".ptx").startswith(".version")
    assert sorted(loaded.manifest["members"]) == sorted(MEMBERS)


def test_same_input_gives_same_bytes(path, tmp_path):
    artifact.write(tmp_path / "again.fa4c", manifest(), dict(reversed(MEMBERS.items())))
    assert (tmp_path / "again.fa4c").read_bytes() == path.read_bytes()
    artifact.load(path).save(tmp_path / "third.fa4c")
    assert (tmp_path / "third.fa4c").read_bytes() == path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert {i.date_time[0] for i in archive.infolist()} == {1980}  # no clock in the bytes


@pytest.mark.parametrize("name", list(MEMBERS))
def test_one_altered_byte_of_a_member_is_refused(path, name):
    def flip(contents):
        contents[name] = contents[name][:-1] + bytes([contents[name][-1] ^ 1])

    rewrite(path, flip)
    with pytest.raises(ArtifactError, match=f"{name}.*altered.*SHA-256"):
        artifact.load(path)


def test_missing_and_unlisted_members_are_refused(path):
    rewrite(path, lambda c: c.update({"evil.py": b""}))
    with pytest.raises(ArtifactError, match="evil.py.*not listed"):
        artifact.load(path)
    rewrite(path, lambda c: (c.pop("evil.py"), c.pop("sample.ptx")))
    with pytest.raises(ArtifactError, match="sample.ptx.*missing"):
        artifact.load(path)


def test_every_truncation_is_refused_with_its_path(path):
    data = path.read_bytes()
    for size in range(0, len(data) - 1, 97):
        path.write_bytes(data[:size])
        with pytest.raises(ArtifactError, match="sample.fa4c"):
            artifact.load(path)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ArtifactError, match="truncated"):
        artifact.load(path)


def test_damage_anywhere_is_refused_or_harmless(path):
    """A flipped byte is found by the zip or by a hash; where it is not (time stamps and the like) the contents are the same."""
    data, whole = path.read_bytes(), artifact.load(path)
    refused = 0
    for at in range(0, len(data), 23):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            loaded = artifact.load(path)
        except ArtifactError:
            refused += 1
        else:
            assert loaded.members == whole.members and loaded.manifest == whole.manifest
    assert refused > len(data) / 23 / 2


@pytest.mark.parametrize(
    "data, reason", [(b"", "no fa4c artifact"), (b"hello", "no fa4c artifact"), (b"PK\x03\x04" + bytes(99), "truncated")]
)
def test_foreign_files_are_refused(tmp_path, data, reason):
    (tmp_path / "x.fa4c").write_bytes(data)
    with pytest.raises(ArtifactError, match=reason):
        artifact.load(tmp_path / "x.fa4c")


def test_foreign_zip_and_missing_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(ArtifactError, match="holds no manifest.json"):
        artifact.load(tmp_path / "x.zip")
    with pytest.raises(ArtifactError, match="nothing.fa4c.*No such file"):
        artifact.load(tmp_path / "nothing.fa4c")


def test_another_schema_is_refused_before_all_else(path):
    def change(contents):
        m = json.loads(contents["manifest.json"])
        m["schema"] = 2
        contents["manifest.json"] = json.dumps(m).encode()

    rewrite(path, change)
    with pytest.raises(ManifestError, match="schema 2, but this runtime reads schema 1"):
        artifact.load(path)


def test_an_interrupted_write_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        artifact.write(path, manifest(name="other"), MEMBERS)
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


def test_nothing_is_written_for_a_bad_manifest_or_folder(tmp_path):
    with pytest.raises(ManifestError):
        artifact.write(tmp_path / "x.fa4c", manifest(steps=[{"op": "dance"}]), MEMBERS)
    assert os.listdir(tmp_path) == []
    with pytest.raises(ArtifactError, match="cannot write here"):
        artifact.write(tmp_path / "no" / "x.fa4c", manifest(), MEMBERS)


def test_a_pipe_is_written_to_and_a_link_is_followed(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_whole(pipe, b"data")
    reader.join(10)
    assert read == [b"data"] and stat.S_ISFIFO(pipe.stat().st_mode)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", b"more")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"more"
