"""Train networks with any loss, and keep their logits.

`refocal-lab train` puts these parts together; each of them can be used alone. `lab/docs/training.md` has examples.

| module | content |
|---|---|
| `data` | `load(name)` reads, verifies and divides a data set; `make_data_set` makes one from your arrays |
| `models` | `build(name, classes=, shape=)` makes a network with fresh weights |
| `objective` | `build_loss(recipe)` makes the loss of a recipe |
| `own_parts` | networks, losses and data sets of your own, named `package.module:function` |
| `recipe` | `TrainingRecipe`: all settings of one training, with the papers' values as defaults |
| `defaults` | the defaults that depend on the kind of data |
| `loop` | `train(recipes, data, out, ...)` trains networks, one after another or side by side on a GPU |
| `on_ray` | the same on a Ray cluster, one task per network |
| `trial` | `Trial`: one network being trained, epoch by epoch |
| `step` | `Step`: one optimizer step as a whole, captured as a CUDA graph on a GPU |
| `batches`, `text_batches` | the batches of an epoch, on the device |
| `run_folder` | `RunFolder`: the files of a run, and the only reader and writer of its card |
| `results`, `history`, `checkpoint` | what a run writes: card and logits, measures per epoch, states to continue from |
| `suitability` | whether network, loss and augmentation of a recipe suit the data |
| `resume` | how far a stopped run is, and whether it was started with the same settings |
| `trained_network` | `load_network` and `load_loss` of a finished run |
| `process` | `Process`: one of the processes that share the batches of a training |
| `convolution`, `kernels` | 3x3 convolutions of few channels, fast on a GPU |
"""
