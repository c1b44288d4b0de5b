"""The disk cache: keys, several processes, corrupt entries."""

import copy
import os
import subprocess
import sys
import warnings

import pytest
from runtime_samples import CAUSAL, MEMBERS, attention_tree, manifest

from fa4c.runtime import artifact, cache, counters

OPTIONS = dict(target="sm_90a", direction="fwd", dtype="bf16", head_dim=(64, 64))


def key(tree, **changes):
    return cache.key_of(tree, **{**OPTIONS, **changes})


def test_names_and_fills_do_not_change_the_key():
    one = attention_tree(mask=CAUSAL)
    other = copy.deepcopy(one)
    other["name"] = "another"
    other["args"][0]["fill"] = "uniform(0,1)"
    for op in other["body"]:
        op["in"] = [n if n in "qkv" else n + "_x" for n in op["in"]]
        op["out"] = [n + "_x" for n in op["out"]]
        op["loc"] = "file.mlir:3:4"
    for r in other["results"]:
        r["value"] += "_x"
    assert key(one) == key(other)


def test_all_else_changes_the_key():
    one = attention_tree(mask=CAUSAL)
    others = [
        attention_tree(),
        attention_tree(mask=CAUSAL, align="top_left"),
        attention_tree(mask=CAUSAL, layout="bhsd"),
        attention_tree(mask=[["index", "j"], ["index", "i"], ["lt", 0, 1]]),
        attention_tree(mask=CAUSAL, d=128),
        attention_tree(mask=CAUSAL, dtype="fp16"),
        attention_tree(mask=CAUSAL, score=[["x", 0], ["const", 0.126, "f32"], ["mul", 0, 1]]),
    ]
    swapped = copy.deepcopy(one)
    swapped["body"][0]["in"] = ["k", "q"]
    renamed = copy.deepcopy(one)
    renamed["results"][1]["name"] = "logsum"
    keys = [
        key(one),
        *map(key, [*others, swapped, renamed]),
        *(key(one, **c) for c in (dict(target="sm_100a"), dict(direction="bwd"), dict(dtype="fp16"), dict(head_dim=(64, 128)))),
    ]
    assert len(set(keys)) == len(keys)


def test_the_compilers_sources_are_part_of_the_key(monkeypatch):
    before = key(attention_tree())
    monkeypatch.setattr(cache, "compiler_version", lambda: "0.1.0+other")
    assert key(attention_tree()) != before


def test_text_keys_ignore_comments_and_white_space_only():
    def text_key(text):
        return cache.key_of_text(text, target="sm_90a", direction="fwd", dtype=None, head_dim=None)

    base = text_key('func.func @f() {\n  "a.b"() : () -> ()\n}\n')
    assert text_key('// a comment\n\nfunc.func  @f() {\n"a.b"()   : () -> ()\n}') == base
    assert text_key('func.func @f() {\n  "a.c"() : () -> ()\n}\n') != base


def build_counter(calls):
    def build():
        calls.append(1)
        return manifest(), MEMBERS

    return build


def test_second_process_like_reader_finds_it_on_disk():
    calls = []
    cache.get_or_build("k", build_counter(calls))
    cache.get_or_build("k", build_counter(calls))
    cache.forget()  # as a new process would
    got = cache.get_or_build("k", build_counter(calls))
    assert len(calls) == 1 and got.name == "sample" and counters.stats()["cache_hits"] == 1 and counters.stats()["compiles"] == 1


def test_a_corrupt_entry_is_rebuilt_with_a_warning():
    calls = []
    cache.get_or_build("k", build_counter(calls))
    (entry,) = cache.directory().glob("*.fa4c")
    entry.write_bytes(entry.read_bytes()[:500])
    cache.forget()
    with pytest.warns(UserWarning, match="corrupt and is rebuilt.*truncated"):
        cache.get_or_build("k", build_counter(calls))
    assert len(calls) == 2 and artifact.load(entry).name == "sample"
    entry.write_bytes(b"PK")
    cache.forget()
    with pytest.warns(UserWarning, match="corrupt") as said:
        assert cache.find("k") is None
    assert [warning.filename for warning in said] == [__file__]  # the caller's line, not one of fa4c
    assert not entry.exists()  # it warns once, even if nobody rebuilds it
    cache.get_or_build("k", build_counter(calls))
    cache.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.get_or_build("k", build_counter(calls))
    assert len(calls) == 3


def test_a_failed_build_leaves_nothing():
    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.get_or_build("k", fail)
    assert cache.entries() == [] and cache.find("k") is None


def test_another_dsl_version_is_another_entry_but_a_machine_without_it_takes_any(monkeypatch):
    calls = []
    monkeypatch.setattr(cache, "dsl_version", lambda: "4.8.1")
    cache.get_or_build("k", build_counter(calls))
    cache.forget()
    monkeypatch.setattr(cache, "dsl_version", lambda: "4.9.0")
    assert cache.find("k") is None
    monkeypatch.setattr(cache, "dsl_version", lambda: None)
    assert cache.find("k") is not None


def test_a_folder_that_cannot_be_written_still_compiles(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FA4C_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="cannot be written"):
        assert cache.get_or_build("k", build_counter([])).name == "sample"


def test_list_size_and_clear():
    assert cache.entries() == [] and cache.size() == 0 and cache.clear() == 0
    for k in ("a", "b"):
        cache.get_or_build(k, build_counter([]))
    (cache.directory() / "broken.fa4c").write_bytes(b"PK")
    listed = cache.entries()
    assert [e.get("name") for e in listed] == ["sample", "sample", None] and "truncated" in listed[2]["error"]
    assert cache.size() == sum(e["bytes"] for e in listed)
    assert cache.clear() == 3 and cache.entries() == [] and list(cache.directory().iterdir()) == []


WORKER = """
import sys, time
sys.path[:0] = [{tests!r}, {root!r}]
from runtime_samples import MEMBERS, manifest
from fa4c.runtime import cache
def build():
    with open({log!r}, "a") as f: f.write("compiled\\n")
    time.sleep(0.5)
    return manifest(), MEMBERS
print(cache.get_or_build("shared", build).name, cache.get_or_build("shared", build).name)
"""


def test_four_processes_compile_once(tmp_path):
    here = os.path.dirname(os.path.abspath(__file__))
    code = WORKER.format(tests=here, root=os.path.dirname(os.path.dirname(here)), log=str(tmp_path / "log"))
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [p.communicate(timeout=120)[0] for p in started]
    assert outputs == ["sample sample\n"] * 4
    assert (tmp_path / "log").read_text() == "compiled\n"
    assert [e["name"] for e in cache.entries()] == ["sample"]
