import json

import click


@click.group()
def main():
    pass


@main.command()
@click.option("--lr", default=0.1, show_default=True, help="Learning rate, see --momentum.")
@click.option("--optimizer", type=click.Choice(["adam", "sgd"]), default="adam")
@click.option("--fp16", is_flag=True)
@click.option("--cache/--no-cache", default=True)
@click.option("-d", "--dropout", type=click.FloatRange(-1, 1), default=0.1)
@click.option("--n-layers", type=int)
def train(**values):
    print(json.dumps(values))


if __name__ == "__main__":
    main()
