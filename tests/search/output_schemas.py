"""The schemas of what is printed as JSON."""

import json

from jsonschema import Draft202012Validator

from tests.conftest import ROOT

SCHEMAS = json.loads((ROOT / "docs" / "schemas" / "output-1.json").read_text())


def check_output(name, output):
    """Return `output`, an object or its text. Fail if it is not as the schema of this name says."""
    output = json.loads(output if isinstance(output, str) else json.dumps(output))
    Draft202012Validator({**SCHEMAS, "$ref": f"#/$defs/{name}"}).validate(output)
    return output
