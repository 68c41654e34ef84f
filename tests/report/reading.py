"""Reads a report's data back out of its HTML, independently of how the page does it."""

import base64
import gzip
import json
import re


def read_payload(html):
    text = re.search(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]*)</script>', html)[1]
    return json.loads(gzip.decompress(base64.b64decode(text)))


def shown_steps(payload):
    """(rollout_id, step_index) -> the step's columns."""
    packed, found = payload["solutions"], {}
    for i, name in enumerate(packed["solutions"]["id"]):
        first, last = packed["solutions"]["first"][i : i + 2]
        for k in range(first, last):
            found[name, k - first] = {column: values[k] for column, values in packed["steps"].items()}
    return found
