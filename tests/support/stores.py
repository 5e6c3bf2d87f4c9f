"""Fake object stores on this machine: Google's, Amazon's, and one that denies access."""

import contextlib
import http.server
import importlib.util
import threading
from http import HTTPStatus

import pytest

BUCKET, READ_ONLY = "bucket", "readonly"
NEEDED = {"gs": ("gcsfs", "gcp_storage_emulator"), "s3": ("s3fs", "moto", "flask_cors")}


def require(scheme: str) -> None:
    """Skips a test where the packages of a store or of its fake are missing."""
    missing = [package for package in NEEDED[scheme] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{scheme}:// is tested with the package {missing[0]}: pip install -e '.[dev,gcs,s3]'")


@contextlib.contextmanager
def google():
    """A fake gs://bucket; gives the environment that selects it.

    Objects can be made on condition, as at Google and other than with the emulator; nobody may write to gs://readonly.
    """
    from gcp_storage_emulator import server
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects

    def generation(files, bucket, name):
        try:
            return files.get_file_obj(bucket, name)["generation"]
        except NotFound:
            return "0"

    def insert(request, response, files, *arguments, **given):
        wanted = request.query.get("ifGenerationMatch")
        bucket = request.params["bucket_name"]
        if bucket == READ_ONLY:
            response.status = HTTPStatus.FORBIDDEN
            response.json({"error": {"code": 403, "message": "You may not write to this bucket."}})
            return
        name = request.query["name"][0] if "name" in request.query else request.data["meta"]["name"]
        if wanted and generation(files, bucket, name) != wanted[0]:
            response.status = HTTPStatus.PRECONDITION_FAILED
            return
        objects.insert(request, response, files, *arguments, **given)

    def download(request, response, files, *arguments, **given):
        response["x-goog-generation"] = generation(files, request.params["bucket_name"], request.params["object_id"])
        objects.download(request, response, files, *arguments, **given)

    def get(request, response, files, *arguments, **given):
        media = request.query.get("alt", [""])[0] == "media"
        (download if media else objects.get)(request, response, files, *arguments, **given)

    ours = {objects.insert: insert, objects.download: download, objects.get: get}
    for _, handlers in server.HANDLERS:
        handlers.update({method: ours[handler] for method, handler in handlers.items() if handler in ours})
    standing = server.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.buckets.create_bucket(READ_ONLY, standing._storage)
    standing.start()
    address = f"http://127.0.0.1:{standing._api._httpd.server_address[1]}"
    try:
        yield google_environment(address)
    finally:
        standing.stop()


def google_environment(address: str) -> dict[str, str]:
    """What leads all readers of gs:// to a server, which need not know gRPC."""
    readers = {"STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address, "FSSPEC_GCS_TOKEN": "anon"}
    return {**readers, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}


@contextlib.contextmanager
def amazon():
    """A fake s3://bucket; gives the environment that selects it."""
    import boto3
    from moto.server import ThreadedMotoServer

    standing = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    standing.start()
    environment = amazon_environment("http://{}:{}".format(*standing.get_host_and_port()))
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"], **keys).create_bucket(Bucket=BUCKET)
    try:
        yield environment
    finally:
        standing.stop()


def amazon_environment(address: str) -> dict[str, str]:
    """What leads all readers of s3:// to a server."""
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": address, "AWS_MAX_ATTEMPTS": "1", **keys}


@contextlib.contextmanager
def closed():
    """The address of a server that lets nobody in."""

    class Refuse(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(HTTPStatus.FORBIDDEN)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_PUT = do_HEAD = do_GET

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as standing:
        threading.Thread(target=standing.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{standing.server_port}"
        standing.shutdown()


@contextlib.contextmanager
def standing(scheme: str):
    """A fake store of a scheme, for this process and those it starts; gives the bucket's name.

    Packages that read settings once, when they are imported, are configured here as well.
    """
    import fsspec.config
    from etils.epath import backend

    from tasks.storage import files

    require(scheme)
    with {"gs": google, "s3": amazon}[scheme]() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        fsspec.config.set_conf_env(fsspec.config.conf)
        yield f"{scheme}://{BUCKET}"
        # Caches of this store's address.
        fsspec.get_filesystem_class(scheme).clear_instance_cache()
        backend.fsspec_backend._get_filesystem.cache_clear()
        files._let_in.cache_clear()
