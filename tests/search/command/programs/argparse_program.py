import argparse
import json

parser = argparse.ArgumentParser(description="Train --this and that")
parser.add_argument("data", help="the data")
parser.add_argument("--lr", "--learning-rate", type=float, default=0.1, help="learning rate (default: %(default)s)")
parser.add_argument("-b", "--batch_size", type=int, default=3, metavar="N")
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
parser.add_argument("--fp16", action="store_true", help="use --lr carefully")
parser.add_argument("--cache", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("--no_cuda", action="store_true")
parser.add_argument("--betas", nargs=2, type=float)
parser.add_argument("--layers", nargs="+", type=int)
parser.add_argument("--opt.weight_decay", type=float)
parser.add_argument("--a-very-long-name-that-has-a-line-of-its-own", type=float, default=0.1, help="very long")
parser.add_argument("--seed", type=int, default=0)
print(json.dumps(vars(parser.parse_args())))
