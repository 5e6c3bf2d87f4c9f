"""Fake object stores on this machine: Google's, Amazon's, and one that denies access."""

import contextlib
import http.server
import importlib.util
import threading
from http import HTTPStatus
from typing import Any

BUCKET, READ_ONLY = "bucket", "readonly"
NEEDED = {"gs": ("gcsfs", "gcp_storage_emulator"), "s3": ("s3fs", "moto", "flask_cors")}


def missing_package(scheme: str) -> str:
    """Returns the first missing package of a store ("gs" or "s3") or of its fake; "" if all are installed."""
    return next((package for package in NEEDED[scheme] if importlib.util.find_spec(package) is None), "")


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

    ours: dict[Any, Any] = {objects.insert: insert, objects.download: download, objects.get: get}
    routes: Any = server.HANDLERS
    for _, handlers in routes:
        handlers.update({method: ours[handler] for method, handler in handlers.items() if handler in ours})
    running: Any = server.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.buckets.create_bucket(READ_ONLY, running._storage)
    running.start()
    address = f"http://127.0.0.1:{running._api._httpd.server_address[1]}"
    try:
        yield google_environment(address)
    finally:
        running.stop()


def google_environment(address: str) -> dict[str, str]:
    """What leads all readers of gs:// to a server, which need not know gRPC."""
    readers = {"STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address, "FSSPEC_GCS_TOKEN": "anon"}
    return {**readers, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}


@contextlib.contextmanager
def amazon():
    """A fake s3://bucket; gives the environment that selects it."""
    import boto3
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    environment = amazon_environment("http://{}:{}".format(*running.get_host_and_port()))
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"], **keys).create_bucket(Bucket=BUCKET)
    try:
        yield environment
    finally:
        running.stop()


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

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
