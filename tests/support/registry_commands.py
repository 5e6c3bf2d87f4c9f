"""The registry tool called in this process: its exit code and output."""

import json

from registry.tool.command_line import main


def registry(capsys, *arguments):
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def data(capsys, *arguments):
    code, out, err = registry(capsys, *arguments, "--json")
    assert err == ""
    return code, json.loads(out)
