import json

import hydra
from omegaconf import OmegaConf


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    print(json.dumps(OmegaConf.to_container(config)))


if __name__ == "__main__":
    main()
