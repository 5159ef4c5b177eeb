"""A stand-in of the model hub's HTTP API on loopback, for tests through the real `huggingface_hub` client.

    with HubStandIn({"org/model": {"main": {"config.json": b"{}"}}}) as hub:
        HfApi(endpoint=hub.endpoint).model_info("org/model")

or, for code that uses the client's defaults, `hub.connect(monkeypatch, cache)` first. Datasets are repos named
`datasets/org/name`.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub
import pytest
import yaml
from huggingface_hub import constants

Files = Mapping[str, bytes]
LFS = (".safetensors", ".bin", ".parquet", ".gguf", ".model")
API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)"
    r"(?:/(?P<verb>refs|revision|tree|paths-info|preupload|commit)(?:/(?P<revision>[^/]+)(?:/(?P<path>.+))?)?)?"
)
CREATE, VALIDATE = "/api/repos/create", "/api/validate-yaml"
BATCH = re.compile(r"/(?:datasets/)?[^/]+/[^/]+\.git/info/lfs/objects/batch")
UPLOAD = re.compile(r"/upload/(?P<oid>[0-9a-f]{64})")
RESOLVE = re.compile(r"/(?P<repo>(?:datasets/)?[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


class Request(NamedTuple):
    method: str
    path: str


class HubError(Exception):
    """An answer that is an error, with the hub's own code for it."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(status, code, message)
        self.status, self.code, self.message = status, code, message


class HubStandIn:
    """Serve `repos`: {repo: {revision: {filename: content}}}; every request about a repo is in `log`."""

    def __init__(self, repos: Mapping[str, Mapping[str, Files]], *, gated: tuple[str, ...] = ()) -> None:
        self.repos = {
            repo: {name: dict(files) for name, files in revisions.items()} for repo, revisions in repos.items()
        }
        self.gated = gated
        self.read_only = False
        self.uploads: dict[str, bytes] = {}
        """What was put into LFS, by its SHA-256."""
        self.log: list[Request] = []
        self.faults: dict[str, HubError] = {}
        self.failing: dict[str, int] = {}
        """How many more transfers of files whose path has such a part fail; HEAD requests do not."""
        self.garbled: dict[str, int] = {}
        """How many more transfers arrive with a wrong last byte, likewise."""
        self.transferring: Callable[[str], object] = lambda path: None
        """Called with the path of each file before its content is sent."""
        self.commits: dict[tuple[str, str], str] = {}
        """Commits of branches that have moved, by (repo, branch)."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        huggingface_hub.close_session()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def connect(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        """Make this the client's default hub, with an empty cache; the client reads its settings at import time."""
        template = self.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in {
            "ENDPOINT": self.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": template,
            "HF_HUB_CACHE": str(cache),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": True,
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        huggingface_hub.close_session()

    def fail(self, part: str, status: int, code: str = "", message: str = "") -> None:
        """Answer every request whose path contains `part` with this error."""
        self.faults[part] = HubError(status, code, message)

    def take(self, faults: dict[str, int], path: str) -> bool:
        """Whether one of so many faults falls on a path now."""
        part = next((part for part, left in faults.items() if part in path and left > 0), None)
        if part is not None:
            faults[part] -= 1
        return part is not None

    def fetched(self) -> list[str]:
        """The paths of files whose content was asked for."""
        return [path for method, path in self.log if method == "GET" and "/resolve/" in path]

    def files(self, repo: str, revision: str) -> tuple[str, Files]:
        """The commit and the files of a revision, given as branch or commit."""
        if repo not in self.repos:
            raise HubError(404, "RepoNotFound", "Repository not found")
        for name, files in self.repos[repo].items():
            commit = self.commits.get((repo, name), commit_of(repo, name))
            if revision in (name, commit):
                return commit, files
        raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")


def commit_of(repo: str, revision: str) -> str:
    """The commit a branch stands at."""
    return hashlib.sha1(f"{repo}@{revision}".encode()).hexdigest()


def entry_of(path: str, data: bytes) -> dict[str, Any]:
    """A file as the tree endpoint shows it: its git object, and its SHA-256 where it is kept in LFS."""
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": _git_object(data)}
    if path.endswith(LFS):
        digest = hashlib.sha256(data).hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n".encode()
        entry |= {
            "oid": _git_object(pointer),
            "lfs": {"oid": digest, "size": len(data), "pointerSize": len(pointer)},
        }
    return entry


def _git_object(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: HubStandIn
    protocol_version = "HTTP/1.1"
    timeout = 10
    # Headers and body are two small writes: without this, the second waits for the first's acknowledgement.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if API.fullmatch(url.path) or RESOLVE.fullmatch(url.path):
            self.hub.log.append(Request(self.command, url.path))
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        written = self.command == "PUT" or "json" in (self.headers.get("Content-Type") or "")
        query = parse_qs(url.query) | ({} if written else parse_qs(body.decode()))
        try:
            for part, error in self.hub.faults.items():
                if part in url.path:
                    raise error
            if self.hub.read_only and self.command in ("POST", "PUT"):
                raise HubError(403, "", "You do not have the rights to write")
            if url.path in (CREATE, VALIDATE) or BATCH.fullmatch(url.path) or UPLOAD.fullmatch(url.path):
                self._write(url.path, body)
            elif (match := API.fullmatch(url.path)) and match["verb"] in ("preupload", "commit"):
                self._commit(match["kind"], unquote(match["repo"]), match["verb"], unquote(match["revision"]), body)
            elif match := API.fullmatch(url.path):
                self._api(query, **{key: unquote(value) for key, value in match.groupdict("").items()})
            elif match := RESOLVE.fullmatch(url.path):
                self._resolve(**{key: unquote(value) for key, value in match.groupdict().items()})
            else:
                raise HubError(404, "EntryNotFound", "Not found")
        except HubError as error:
            headers = {"X-Error-Code": error.code, "X-Error-Message": error.message}
            self._answer(json.dumps({"error": error.message}).encode(), headers, error.status)

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - the names http.server looks for

    def _api(self, query: dict[str, list[str]], kind: str, repo: str, verb: str, revision: str, path: str) -> None:
        repo = repo if kind == "models" else f"datasets/{repo}"
        if verb == "refs":
            self.hub.files(repo, next(iter(self.hub.repos.get(repo, {"": {}}))))
            refs = [
                {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit_of(repo, name)}
                for name in self.hub.repos[repo]
            ]
            self._json({"branches": refs, "tags": [], "converts": []})
            return
        commit, files = self.hub.files(repo, revision or "main")
        entries = [entry_of(name, data) for name, data in sorted(files.items())]
        if verb == "tree":
            self._json(_level(entries, path, query.get("recursive", ["false"])[0].lower() == "true"))
        elif verb == "paths-info":
            self._json([entry for entry in entries if entry["path"] in query.get("paths", [])])
        else:
            self._json(self._info(repo, commit, entries, blobs="blobs" in query))

    def _write(self, path: str, body: bytes) -> None:
        """What comes before a commit: a new repository, the check of its card, files for LFS."""
        if match := UPLOAD.fullmatch(path):
            assert hashlib.sha256(body).hexdigest() == match["oid"]
            self.hub.uploads[match["oid"]] = body
            self._json({})
            return
        data = json.loads(body)
        if path == VALIDATE:
            header = data["content"].split("---\n")[1]
            errors = [] if isinstance(yaml.safe_load(header), dict) else [{"message": "no mapping"}]
            self._json({"warnings": [], "errors": errors})
        elif path == CREATE:
            prefix = "datasets/" if data.get("type") == "dataset" else ""
            repo = (
                f"{prefix}{data['organization']}/{data['name']}" if data.get("organization") else prefix + data["name"]
            )
            answer = {"url": f"{self.hub.endpoint}/{repo}"}
            if repo in self.hub.repos:
                answer["error"] = "You already created this dataset repo"
            status = 409 if repo in self.hub.repos else 200
            self.hub.repos.setdefault(repo, {"main": {".gitattributes": b""}})
            self._answer(json.dumps(answer).encode(), {}, status)
        else:
            objects = [
                {**one, "actions": {"upload": {"href": f"{self.hub.endpoint}/upload/{one['oid']}"}}}
                for one in data["objects"]
            ]
            self._json({"transfer": "basic", "objects": objects})

    def _commit(self, kind: str, repo: str, verb: str, revision: str, body: bytes) -> None:
        """Say how files are to be sent, or make a commit of those that were."""
        repo = repo if kind == "models" else f"datasets/{repo}"
        _, known = self.hub.files(repo, revision)
        if verb == "preupload":
            paths = [one["path"] for one in json.loads(body)["files"]]
            kinds = {path: "lfs" if path.endswith(LFS) else "regular" for path in paths}
            modes = [{"path": path, "uploadMode": kind, "shouldIgnore": False} for path, kind in kinds.items()]
            self._json({"files": modes})
            return
        files = dict(known)
        for line in body.splitlines():
            key, value = (entry := json.loads(line))["key"], entry["value"]
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.hub.uploads[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
        self.hub.repos[repo][revision] = files
        commit = hashlib.sha1(body + str(sorted(files)).encode()).hexdigest()
        self.hub.commits[repo, revision] = commit
        self._json({"commitUrl": f"{self.hub.endpoint}/{repo}/commit/{commit}", "commitOid": commit, "success": True})

    def _info(self, repo: str, commit: str, entries: list[dict[str, Any]], *, blobs: bool) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = [{"rfilename": entry["path"]} for entry in entries]
        if blobs:
            for sibling, entry in zip(siblings, entries, strict=True):
                sibling |= {"size": entry["size"], "blobId": entry["oid"]}
                if lfs := entry.get("lfs"):
                    sibling["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
        name = repo.removeprefix("datasets/")
        gated = "manual" if repo in self.hub.gated else False
        return {"id": name, "modelId": name, "sha": commit, "private": False, "gated": gated, "siblings": siblings}

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        commit, files = self.hub.files(repo, revision)
        if repo in self.hub.gated:  # as on the hub: everybody sees the metadata, not everybody the files
            raise HubError(401, "GatedRepo", "Access to this model is restricted.")
        if path not in files:
            raise HubError(404, "EntryNotFound", "Entry not found")
        data, entry = files[path], entry_of(path, files[path])
        if self.command == "GET":
            self.hub.transferring(f"{revision}/{path}")
            if self.hub.take(self.hub.failing, f"{revision}/{path}"):
                raise HubError(503, "", "Service unavailable")
            if self.hub.take(self.hub.garbled, f"{revision}/{path}"):
                data = data[:-1] + bytes([data[-1] ^ 1])
        etag = entry["lfs"]["oid"] if "lfs" in entry else entry["oid"]
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(span[1]), min(int(span[2] or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self._answer(data[first : last + 1], headers, 206, "application/octet-stream")
        else:
            self._answer(data, headers, 200, "application/octet-stream")

    def _json(self, data: object) -> None:
        self._answer(json.dumps(data).encode(), {}, 200)

    def _answer(self, body: bytes, headers: dict[str, str], status: int, kind: str = "application/json") -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _level(entries: list[dict[str, Any]], path: str, recursive: bool) -> list[dict[str, Any]]:
    """The files under a folder and the folders in it; deeper ones only when `recursive`."""
    prefix = f"{path}/" if path else ""
    below = [entry for entry in entries if entry["path"].startswith(prefix)]
    if not below and path:
        raise HubError(404, "EntryNotFound", f"{path} does not exist")
    if recursive:
        return below
    folders = dict.fromkeys(prefix + rest.split("/")[0] for e in below if "/" in (rest := e["path"][len(prefix) :]))
    return [
        *({"type": "directory", "path": name, "oid": _git_object(name.encode()), "size": 0} for name in folders),
        *(entry for entry in below if "/" not in entry["path"][len(prefix) :]),
    ]
