"""An abstract interpreter that follows the examples of a batch to the loss: op by op, nothing is guessed.

================ ================================================================================================
file             contents
================ ================================================================================================
interpreter      the interpreter of a graph, functions, branches and loops included
domain           the abstract values: how a tensor depends on the examples
op               one node, as the rules see it
rules            the rule of each op, merged from the files below
elementwise      ops that treat every entry by itself: arithmetic, activations, comparisons, casts
reductions       ops that add or average along axes, and products of matrices
layout           ops that move entries: transpose, concatenate, split, pad; with ``reshape`` for reshapes
slices           slices, also those that take micro-batches
micro_batches    batches that a step cuts into micro-batches, and how many these may be
gathers          ops that look rows up
places           where the entries of a mask are, and what is looked up there
permutations     examples that change places by chance
partitions       entries that are divided between the parts of a table, looked up there, and put together again
coordinates      coordinates that begin with the number of the example, to look up an entry of each
ragged           tensors with as many entries of each example as it has words, say
samplers         candidate samplers, which draw classes for a batch
layers           convolutions, pooling, normalisation, random numbers, ops on images and on stacks of matrices
sizes            ops on shapes and on numbers that follow from the size of the batch
row_constants    constants that stand for the number of examples, in a step traced for a fixed number of them
tensor_lists     TensorLists, which loops read and write
map_loops        loops with one round for each example, and loops that count
tensor_gradients gradients of sums and means over the batch with respect to tensors
================ ================================================================================================

A new op is one row in the table ``RULES`` at the end of the file of its kind; see CONTRIBUTING.md. A new file also has
to be put into `rules.py`: its ``RULES`` into ``_ON_EXAMPLES``; a rule that reads a new kind of value into ``_READERS``.
"""
