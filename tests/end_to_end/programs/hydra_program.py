"""Is configured by Hydra, and logs to MLflow."""

import hydra
import mlflow


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    with mlflow.start_run():
        for epoch in range(1, config.epochs + 1):
            mlflow.log_metrics({"score": config.optimizer.lr + 1 / epoch}, step=epoch)
    print("after training")


if __name__ == "__main__":
    main()
