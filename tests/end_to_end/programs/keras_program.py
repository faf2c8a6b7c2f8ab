"""Trains with Keras. Its parameters are globals."""

import keras
import numpy

learning_rate = 1e-3
epochs = 4


@keras.saving.register_keras_serializable()
class Score(keras.metrics.Metric):
    epoch = 0

    def update_state(self, *_, **__):
        pass

    def result(self):
        return learning_rate + 1 / max(1, self.epoch)

    def reset_state(self):
        pass


class Count(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        Score.epoch = epoch + 1


model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(learning_rate), loss="mse", metrics=[Score(name="score")])
x = numpy.ones((8, 1), "float32")
model.fit(x, x, validation_data=(x, x), epochs=epochs, callbacks=[Count()], verbose=0)
print("after training")
