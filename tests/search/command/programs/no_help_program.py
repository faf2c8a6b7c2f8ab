"""Takes --key=value as nanoGPT does, without help."""

import json
import sys

config = {"learning_rate": 0.1, "compile": False}
for argument in sys.argv[1:]:
    assert "=" in argument, argument
    key, value = argument[2:].split("=")
    config[key] = json.loads(value.lower())
print(json.dumps(config))
