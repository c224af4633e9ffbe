"""Passes over a traced network that keep its answers and give the device less to do.

``fold_batch_norm`` is for all devices, ``fuse_relu``, ``fuse_sums`` and ``fuse_norm_relu`` are for
CUDA devices, ``pool_before_relu`` and ``thin_inputs`` for the CPU. The operations here have
gradients in the images only: the weights of a copy need none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any, TypeGuard, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.utils import _pair
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

M = TypeVar("M", bound=nn.Module)
_ADDS = (operator.add, operator.iadd, torch.add)
_RELUS = (F.relu, torch.relu, torch.relu_)


def fold_batch_norm(model: fx.GraphModule) -> list[tuple[str, str]]:
    """Put each BatchNorm that alone follows a layer into that layer's weights.

    Returns:
        The names of the layers, and of the BatchNorms that are in them now.
    """
    folded: list[tuple[str, str]] = []
    for node, norm in _calls_of(model, _BatchNorm):
        before = node.args[0]
        layer = _only_module(before)
        if norm.running_mean is not None and isinstance(layer, nn.Conv2d | nn.Linear):
            fold = fuse_conv_bn_eval if isinstance(layer, nn.Conv2d) else fuse_linear_bn_eval
            model.set_submodule(before.target, fold(layer, norm))  # type: ignore[type-var]
            _bypass(node, before)
            folded.append((before.target, str(node.target)))
    return folded


def fuse_relu(model: fx.GraphModule) -> None:
    """``relu(conv(x))`` and ``relu(conv(x) + z)`` become one operation of cuDNN each.

    Where z is a convolution too, its bias is added together with the other's.
    """
    for node in _relus(model):
        inner = node.args[0]
        added = isinstance(inner, fx.Node) and inner.target in _ADDS and len(inner.users) == 1
        for conv, *others in (inner.args, inner.args[::-1]) if added else ((inner,),):
            layer = _only_module(conv)
            if not _plain(layer):
                continue
            bias = None
            for other in others:
                beside = _only_module(other)
                if _plain(beside) and beside.out_channels == layer.out_channels:
                    bias = beside.bias
                    model.set_submodule(other.target, _BareConv(beside))
            model.set_submodule(conv.target, _ConvRelu(layer, bias))
            with model.graph.inserting_before(node):
                fused = model.graph.call_module(conv.target, (conv.args[0], *others))
            _bypass(node, fused)
            for old in (inner, conv) if added else (conv,):
                model.graph.erase_node(old)
            break


def fuse_sums(model: fx.GraphModule) -> None:
    """Where two layers take the output of a fused convolution, the sum of their gradients and the
    backward pass of its ReLU become one kernel."""
    for node, layer in _calls_of(model, _ConvRelu):
        if len(node.users) == 2:
            layer.twice = True
            for index, user in reversed(list(enumerate(node.users))):
                with model.graph.inserting_after(node):
                    output = model.graph.call_function(operator.getitem, (node, index))
                    user.replace_input_with(node, output)


def fuse_norm_relu(model: fx.GraphModule) -> None:
    """``relu(norm(x))``, where BatchNorm is in no layer's weights, becomes one compiled kernel in
    each direction."""
    for node in _relus(model):
        before = node.args[0]
        norm = _only_module(before)
        if isinstance(norm, _BatchNorm) and norm.running_mean is not None and norm.affine:
            model.set_submodule(before.target, _NormRelu(norm))
            _bypass(node, before)


def pool_before_relu(model: fx.GraphModule) -> None:
    """``maxpool(relu(x))`` becomes ``relu(maxpool(x))``: the same, gradients
    included, with less to do."""
    for node, pool in _calls_of(model, nn.MaxPool2d):
        relu = node.args[0]
        if _is_relu(relu) and len(relu.users) == 1 and _calls(node) == 1:
            model.set_submodule(str(node.target), _PoolRelu(pool))
            _bypass(relu, relu.args[0])


def thin_inputs(model: fx.GraphModule) -> None:
    """Convolutions of grey or coloured images get their own backward pass: oneDNN's is made for
    16 channels."""
    for name, layer in list(model.named_modules()):
        if _plain(layer) and layer.in_channels <= 3 and layer.groups == 1:
            model.set_submodule(name, _ThinConv(layer))


def _module(node: Any) -> nn.Module | None:
    """The module that a node calls, if it calls one."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    return node.graph.owning_module.get_submodule(str(node.target))  # type: ignore[union-attr]


def _calls_of(model: fx.GraphModule, kind: type[M]) -> Iterator[tuple[Any, M]]:
    """The nodes that call a module of this kind; they may be changed on the way."""
    for node in list(model.graph.nodes):
        if isinstance(module := _module(node), kind):
            yield node, module


def _calls(node: fx.Node) -> int:
    """How often the module that a node calls is called."""
    return sum((one.op, one.target) == (node.op, node.target) for one in node.graph.nodes)


def _only_module(node: Any) -> nn.Module | None:
    """The module that a node calls, if nothing else sees the node or calls the module."""
    module = _module(node)
    return module if module and len(node.users) <= 1 and _calls(node) == 1 else None


def _bypass(node: fx.Node, by: fx.Node) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def _plain(layer: object) -> TypeGuard[nn.Conv2d]:
    """Whether it is a convolution padded with zeros, whose weight is a parameter and not computed
    from others."""
    if not isinstance(layer, nn.Conv2d) or not isinstance(layer.weight, nn.Parameter):
        return False
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _relus(model: fx.GraphModule) -> list[Any]:
    return [node for node in model.graph.nodes if _is_relu(node)]


def _is_relu(node: Any) -> bool:
    if not isinstance(node, fx.Node) or node.op == "call_module":
        return isinstance(_module(node), nn.ReLU)
    return node.target in _RELUS or (node.op == "call_method" and node.target in ("relu", "relu_"))


class _Conv(nn.Module):
    """A convolution's weights and geometry, for modules that compute it in another way."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight = conv.weight
        self.bias = conv.bias
        self.how = (conv.stride, conv.padding, conv.dilation, conv.groups)


class _ConvRelu(_Conv):
    """``relu(conv(x) + bias + other)``; ``bias`` is that of another convolution, whose output
    without it is ``other``. With ``twice`` it returns its output two times, for two layers."""

    def __init__(self, conv: nn.Conv2d, bias: Tensor | None) -> None:
        super().__init__(conv)
        self.others = (bias,)  # in a tuple, so that it is not registered as a parameter
        self.twice = False

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        biases = [bias for bias in (self.bias, *self.others) if bias is not None]
        bias = sum(biases[1:], biases[0]) if biases else None
        return _FusedConv.apply(x, self.weight, bias, other, self.how, self.twice)  # type: ignore[no-untyped-call, no-any-return]


class _BareConv(_Conv):
    """A convolution without its bias, which is added elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        return _StridedConv.apply(x, self.weight, self.how)  # type: ignore[no-untyped-call, no-any-return]


class _StridedConv(torch.autograd.Function):
    """A convolution. A kernel of one pixel reads only the pixels that its stride selects: what
    cuDNN chooses for such a layer can take five times as long."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: Any) -> Tensor:
        ctx.how = how
        ctx.save_for_backward(x, weight)
        stride, padding, dilation, groups = how
        if weight.shape[2:] == (1, 1) and tuple(padding) == (0, 0):
            x = x[:, :, :: stride[0], :: stride[1]].contiguous(memory_format=torch.channels_last)
            stride = (1, 1)
        return torch.conv2d(x, weight, None, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return _into_images(gradient, x, weight, ctx.how), None, None


class _FusedConv(torch.autograd.Function):
    """cuDNN's convolution with bias, sum and ReLU. With ``twice`` there are two outputs in the same
    memory, so that the gradients of two layers come one by one."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Any, other: Any, how: Any, twice: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        if other is None:
            y = torch.cudnn_convolution_relu(x, weight, bias, *how)
        else:
            y = torch.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, *how)
        ctx.how, ctx.added = how, other is not None
        ctx.save_for_backward(x, weight, y)
        ctx.set_materialize_grads(False)
        if not twice:
            return y
        return y, y.new_empty(0).set_(y.untyped_storage(), 0, y.shape, y.stride())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        given = [gradient for gradient in gradients if gradient is not None]
        if not given:
            return (None,) * 6
        if len(given) == 2 and y.is_cuda:
            through = _sum_where_positive()(*given, y)
        else:
            through = torch.ops.aten.threshold_backward(sum(given[1:], given[0]), y, 0)
        into_other = through if ctx.added else None
        return _into_images(through, x, weight, ctx.how), None, None, into_other, None, None


def _into_images(gradient: Tensor, x: Tensor, weight: Tensor, how: Any) -> Tensor:
    """The gradient of a convolution in its input."""
    stride, padding, dilation, groups = how
    geometry = (stride, padding, dilation, False, [0, 0], groups)
    wanted = [True, False, False]
    into, _, _ = torch.ops.aten.convolution_backward(gradient, x, weight, None, *geometry, wanted)
    return into  # type: ignore[no-any-return]


class _PoolRelu(nn.Module):
    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        sizes = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
        self.how = (*map(_pair, sizes), pool.ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        return _FusedPool.apply(x, self.how)  # type: ignore[no-untyped-call, no-any-return]


class _FusedPool(torch.autograd.Function):
    """``relu(maxpool(x))``; keeps its output and the positions for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: Any) -> Tensor:
        if not ctx.needs_input_grad[0] and how == ((2, 2), (2, 2), (0, 0), (1, 1), False):
            rows = torch.maximum(x[:, :, :-1:2], x[:, :, 1::2])  # positions are not needed
            return torch.maximum(rows[..., :-1:2], rows[..., 1::2]).relu_()
        y: Tensor
        y, positions = torch.ops.aten.max_pool2d_with_indices(x, *how)
        ctx.how, ctx.shape = how, x.shape
        ctx.save_for_backward(y.relu_(), positions)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        y, positions = ctx.saved_tensors
        aten = torch.ops.aten
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        through = aten.threshold_backward(gradient, y, 0)
        x = torch.empty(
            ctx.shape, dtype=y.dtype, device=y.device, memory_format=torch.channels_last
        )
        return aten.max_pool2d_with_indices_backward(through, x, *ctx.how, positions), None


class _ThinConv(_Conv):
    def forward(self, x: Tensor) -> Tensor:
        return _SpreadConv.apply(x, self.weight, self.bias, self.how)  # type: ignore[no-untyped-call, no-any-return]


class _SpreadConv(torch.autograd.Function):
    """A convolution whose backward pass is one matrix product for all positions of the kernel; each
    part of it is added where it belongs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: Any) -> Tensor:
        ctx.how, ctx.shape = how, x.shape
        ctx.save_for_backward(weight)
        return torch.conv2d(x, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        stride, padding, dilation, _ = ctx.how
        count, channels, height, width = ctx.shape
        rows, columns = gradient.shape[2:]
        kernels = weight.movedim(0, -1).flatten(0, -2)
        pixels = gradient.movedim(1, -1).flatten(0, -2)
        parts = (kernels @ pixels.T).view(*weight.shape[1:], count, rows, columns)
        top, left = padding
        into = gradient.new_zeros(channels, count, height + 2 * top, width + 2 * left)
        for i, j in product(*map(range, weight.shape[2:])):
            y, x = i * dilation[0], j * dilation[1]
            at_rows = slice(y, y + stride[0] * rows, stride[0])
            at_columns = slice(x, x + stride[1] * columns, stride[1])
            into[:, :, at_rows, at_columns] += parts[:, i, j]
        cut = into[:, :, top : top + height, left : left + width]
        return cut.transpose(0, 1).contiguous(), None, None, None


class _NormRelu(nn.Module):
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return _FusedNorm.apply(x, scale.view(-1, 1, 1), shift.view(-1, 1, 1))  # type: ignore[no-untyped-call, no-any-return]


class _FusedNorm(torch.autograd.Function):
    """``relu(x * scale + shift)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        y: Tensor = _compiled(_scale_shift_relu)(x, scale, shift)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _compiled(_scale_where_positive)(gradient, *ctx.saved_tensors), None, None


@cache
def _sum_where_positive() -> Callable[..., Tensor]:
    """``(a + b) * (y > 0)`` as one kernel, compiled at run time in a tenth of a second."""
    code = "template <typename T> T masked_sum(T a, T b, T y) { return y > T(0) ? a + b : T(0); }"
    return torch.cuda.jiterator._create_jit_fn(code)


@cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, dynamic=True)


def _scale_shift_relu(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return (x * scale + shift).relu().to(x.dtype)


def _scale_where_positive(gradient: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    return torch.where(y > 0, gradient * scale, 0).to(gradient.dtype)
