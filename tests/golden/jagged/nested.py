# SPDX-License-Identifier: MIT
"""Components, PyTorch's two nested layouts, and the routes through PyTorch that a reference can come from.

Used by ops.py. A nested tensor of a golden file is the list of its components, each of shape `shape` with the
component's length for -1, stored one behind the other (component by component, row-major).
"""
import math
import warnings

import torch

warnings.filterwarnings("ignore", message=".*nested tensors.*")
F64 = torch.float64


def component_shape(shape, length):
    return [length if extent == -1 else extent for extent in shape]


def split(flat, lengths, shape):
    """The components of a flat tensor."""
    sizes = [math.prod(component_shape(shape, length)) for length in lengths]
    assert sum(sizes) == flat.numel(), (sizes, flat.shape)
    return [part.reshape(component_shape(shape, length)) for part, length in zip(flat.reshape(-1).split(sizes), lengths)]


def join(components):
    return torch.cat([component.reshape(-1) for component in components])


def strided(components, wanted=False):
    """A nested tensor of torch.strided, a leaf."""
    return torch.nested.nested_tensor([c.detach() for c in components], layout=torch.strided, requires_grad=wanted)


class Jagged:
    """A nested tensor of torch.jagged over a leaf of values, whose ragged dimension is any of the component's."""

    def __init__(self, components, shape, wanted=False, offsets=None):
        self.axis = shape.index(-1)
        self.lengths = [c.shape[self.axis] for c in components]
        self.values = torch.cat([c.detach() for c in components], self.axis).contiguous().requires_grad_(wanted)
        if offsets is None:
            offsets = torch.tensor([0] + self.lengths).cumsum(0)
        self.tensor = torch.nested.nested_tensor_from_jagged(self.values, offsets, jagged_dim=self.axis + 1,
                                                             max_seqlen=max([*self.lengths, 1]))

    def backward(self, result, components, axis=None):
        """Sends the gradients (components of the result, ragged along `axis`) back; returns those of the values."""
        axis = self.axis if axis is None else axis
        result.values().backward(torch.cat(components, axis).reshape(result.values().shape))
        return list(self.values.grad.split(self.lengths, self.axis))


def strided_autograd(function, x, grad):
    """Gradient components of function(nested x) by autograd of torch.strided."""
    leaf = strided(x, True)
    function(leaf).backward(strided(grad))
    return list(leaf.grad.unbind())


def jagged_autograd(function, x, shape, grad, grad_shape=None):
    leaf = Jagged(x, shape, True)
    return leaf.backward(function(leaf.tensor), grad, (grad_shape or shape).index(-1))


def dense_autograd(function, x, grad):
    """The fall-back: every component as an ordinary tensor."""
    result = []
    for component, g in zip(x, grad):
        leaf = component.detach().clone().requires_grad_()
        function(leaf).backward(g)
        result.append(leaf.grad)
    return result
