import json

from absl import app, flags

flags.DEFINE_float("lr", 0.1, "Learning rate.")
flags.DEFINE_integer("batch_size", 3, "Size.")
flags.DEFINE_bool("fp16", False, "Use --half precision.")
flags.DEFINE_enum("optimizer", "adam", ["adam", "sgd"], "Which.")


def main(argv):
    values = flags.FLAGS
    print(json.dumps({name: values[name].value for name in ("lr", "batch_size", "fp16", "optimizer")}))


app.run(main)
