"""Passes over a traced network that leave its answers as they are and give
the device less to do."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

_ADDS = (operator.add, operator.iadd, torch.add)
_RELUS = (F.relu, torch.relu, torch.relu_)


def fold_batch_norm(model: fx.GraphModule) -> list[tuple[str, str]]:
    """Each BatchNorm that follows a layer of its own becomes a part of that layer's weights.

    Returns the names of the layers and of the BatchNorms that went into them.
    """
    modules, uses = dict(model.named_modules()), _uses(model)
    folded: list[tuple[str, str]] = []
    for node in list(model.graph.nodes):
        norm, before = modules.get(str(node.target)), next(iter(node.args), None)
        if not isinstance(norm, _BatchNorm) or norm.running_mean is None:
            continue
        layer = _layer(before, modules, uses)
        if isinstance(before, fx.Node) and isinstance(layer, nn.Conv2d | nn.Linear):
            fold = fuse_conv_bn_eval if isinstance(layer, nn.Conv2d) else fuse_linear_bn_eval
            model.set_submodule(str(before.target), fold(layer, norm))  # type: ignore[type-var]
            node.replace_all_uses_with(before)
            model.graph.erase_node(node)
            folded.append((str(before.target), str(node.target)))
    return folded


def fuse_relu(model: fx.GraphModule) -> None:
    """``relu(conv(x))`` and ``relu(conv(x) + z)`` become one operation of cuDNN each.

    Where z is a convolution too, its bias is added together with the other's.
    """
    modules, uses = dict(model.named_modules()), _uses(model)
    for node in list(model.graph.nodes):
        if not _is_relu(node, modules):
            continue
        inner = node.args[0]
        added = (
            isinstance(inner, fx.Node)
            and inner.target in _ADDS
            and len(inner.users) == 1
            and len(inner.args) == 2
        )
        for conv, other in (inner.args, inner.args[::-1]) if added else ((inner, None),):
            layer = _layer(conv, modules, uses)
            if not _plain(layer):
                continue
            beside, elsewhere = _layer(other, modules, uses), None
            if other is not None and _plain(beside) and beside.out_channels == layer.out_channels:
                elsewhere = beside.bias
                model.set_submodule(str(other.target), _BareConv(beside))
            model.set_submodule(conv.target, _ConvRelu(layer, elsewhere))
            with model.graph.inserting_before(node):
                fused = model.graph.call_module(
                    conv.target, (conv.args[0], *([other] if added else []))
                )
            node.replace_all_uses_with(fused)
            for old in (node, inner, conv) if added else (node, conv):
                model.graph.erase_node(old)
            break


def fuse_sums(model: fx.GraphModule) -> None:
    """Where two layers take what a fused convolution gives, its ReLU and the sum of their
    gradients are one kernel."""
    modules = dict(model.named_modules())
    for node in list(model.graph.nodes):
        layer = modules.get(str(node.target))
        if node.op != "call_module" or not isinstance(layer, _ConvRelu) or len(node.users) != 2:
            continue
        layer.twice = True
        for place, user in reversed(list(enumerate(node.users))):
            with model.graph.inserting_after(node):
                user.replace_input_with(
                    node, model.graph.call_function(operator.getitem, (node, place))
                )


def fuse_norm_relu(model: fx.GraphModule) -> None:
    """``relu(norm(x))``, where BatchNorm has no layer of its own before it, becomes one
    compiled kernel each way."""
    modules, uses = dict(model.named_modules()), _uses(model)
    for node in list(model.graph.nodes):
        norm = _layer(node.args[0], modules, uses) if _is_relu(node, modules) else None
        if isinstance(norm, _BatchNorm) and norm.running_mean is not None and norm.affine:
            before = node.args[0]
            model.set_submodule(before.target, _NormRelu(norm))
            node.replace_all_uses_with(before)
            model.graph.erase_node(node)


def pool_before_relu(model: fx.GraphModule) -> None:
    """``maxpool(relu(x))`` becomes ``relu(maxpool(x))``: the same, gradients
    included, with less to do."""
    modules, uses = dict(model.named_modules()), _uses(model)
    for node in list(model.graph.nodes):
        pool, relu = modules.get(str(node.target)), next(iter(node.args), None)
        if (
            not isinstance(pool, nn.MaxPool2d)
            or pool.return_indices
            or not isinstance(relu, fx.Node)
        ):
            continue
        if _is_relu(relu, modules) and len(relu.users) == 1 and uses[node.target] == 1:
            model.set_submodule(str(node.target), _PoolRelu(pool))
            relu.replace_all_uses_with(relu.args[0])  # type: ignore[arg-type]
            model.graph.erase_node(relu)


def thin_inputs(model: fx.GraphModule) -> None:
    """Convolutions of grey or coloured images get a pass back of their own: oneDNN's is
    made for 16 channels."""
    for name, layer in list(model.named_modules()):
        if _plain(layer) and layer.in_channels <= 3 and layer.groups == 1:
            model.set_submodule(name, _ThinConv(layer))


def _uses(model: fx.GraphModule) -> Counter[object]:
    return Counter(node.target for node in model.graph.nodes if node.op == "call_module")


def _layer(node: Any, modules: dict[str, nn.Module], uses: Counter[object]) -> nn.Module | None:
    """The module that a node calls, if nothing else sees the node or calls the module."""
    if (
        not isinstance(node, fx.Node)
        or node.op != "call_module"
        or len(node.users) > 1
        or uses[node.target] > 1
    ):
        return None
    return modules[str(node.target)]


def _plain(layer: object) -> TypeGuard[nn.Conv2d]:
    """A convolution with zeros around, whose weight is a parameter and not computed of others."""
    if not isinstance(layer, nn.Conv2d) or not isinstance(layer.weight, nn.Parameter):
        return False
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules.get(str(node.target)), nn.ReLU)
    return node.target in _RELUS or (node.op == "call_method" and node.target in ("relu", "relu_"))


class _Conv(nn.Module):
    """What a convolution has, for one that does it otherwise."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.how = (conv.stride, conv.padding, conv.dilation, conv.groups)


class _ConvRelu(_Conv):
    def __init__(self, conv: nn.Conv2d, bias: Tensor | None) -> None:
        super().__init__(conv)
        self.others = (bias,)  # another layer's, so it is no parameter of this one
        self.twice = False

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        (more,) = self.others
        bias = more if self.bias is None else self.bias if more is None else self.bias + more
        return _FusedConv.apply(x, self.weight, bias, other, self.how, self.twice)  # type: ignore[no-untyped-call, no-any-return]


class _BareConv(_Conv):
    """Without its bias, which is added elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        return _StridedConv.apply(x, self.weight, self.how)  # type: ignore[no-untyped-call, no-any-return]


class _StridedConv(torch.autograd.Function):
    """With gradients in the images only. Of the pixels that a kernel of one pixel jumps over
    nothing is read: cuDNN's own choice for such a layer can take five times as long."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: Any) -> Tensor:
        ctx.how = how
        ctx.save_for_backward(x, weight)
        stride, padding, dilation, groups = how
        if weight.shape[2:] == (1, 1) and tuple(padding) == (0, 0):
            x, stride = (
                x[:, :, :: stride[0], :: stride[1]].contiguous(memory_format=torch.channels_last),
                (1, 1),
            )
        return torch.conv2d(x, weight, None, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return _into_images(gradient, x, weight, ctx.how), None, None


class _FusedConv(torch.autograd.Function):
    """With gradients in the images (and in what is added) only: the weights of a copy need none.

    Given ``twice``, for two that take it, so that their gradients come one by one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        other: Tensor | None,
        how: Any,
        twice: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if other is None:
            y = torch.cudnn_convolution_relu(x, weight, bias, *how)
        else:
            y = torch.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, *how)
        ctx.how, ctx.added = how, other is not None
        ctx.save_for_backward(x, weight, y)
        ctx.set_materialize_grads(False)
        return (y, y.new_empty(0).set_(y.untyped_storage(), 0, y.shape, y.stride())) if twice else y

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
        return (
            _into_images(through, x, weight, ctx.how),
            None,
            None,
            through if ctx.added else None,
            None,
            None,
        )


def _into_images(gradient: Tensor, x: Tensor, weight: Tensor, how: Any) -> Tensor:
    stride, padding, dilation, groups = how
    into, _, _ = torch.ops.aten.convolution_backward(
        gradient,
        x,
        weight,
        None,
        stride,
        padding,
        dilation,
        False,
        [0, 0],
        groups,
        [True, False, False],
    )
    return into  # type: ignore[no-any-return]


class _PoolRelu(nn.Module):
    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        how = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
        self.how = (
            *([value, value] if isinstance(value, int) else [*value] for value in how),
            pool.ceil_mode,
        )

    def forward(self, x: Tensor) -> Tensor:
        return _FusedPool.apply(x, self.how)  # type: ignore[no-untyped-call, no-any-return]


class _FusedPool(torch.autograd.Function):
    """Keeps the largest of each window and where it was; nothing of the rest."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: Any) -> Tensor:
        if not ctx.needs_input_grad[0] and how == ([2, 2], [2, 2], [0, 0], [1, 1], False):
            rows = torch.maximum(x[:, :, :-1:2], x[:, :, 1::2])  # where it was does not matter
            return torch.maximum(rows[..., :-1:2], rows[..., 1::2]).relu_()
        y: Tensor
        y, places = torch.ops.aten.max_pool2d_with_indices(x, *how)
        ctx.how, ctx.shape = how, x.shape
        ctx.save_for_backward(y.relu_(), places)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        y, places = ctx.saved_tensors
        through = torch.ops.aten.threshold_backward(
            gradient.contiguous(memory_format=torch.channels_last), y, 0
        )
        x = torch.empty(
            ctx.shape, dtype=y.dtype, device=y.device, memory_format=torch.channels_last
        )
        return torch.ops.aten.max_pool2d_with_indices_backward(through, x, *ctx.how, places), None


class _ThinConv(_Conv):
    def forward(self, x: Tensor) -> Tensor:
        return _SpreadConv.apply(x, self.weight, self.bias, self.how)  # type: ignore[no-untyped-call, no-any-return]


class _SpreadConv(torch.autograd.Function):
    """With gradients in the images only: one product for all places of the kernel, each
    added where it belongs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: Any) -> Tensor:
        ctx.how, ctx.shape = how, x.shape
        ctx.save_for_backward(weight)
        return torch.conv2d(x, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,), (stride, padding, dilation, _) = ctx.saved_tensors, ctx.how
        count, channels, height, width = ctx.shape
        kernels, pixels = (
            weight.movedim(0, -1).flatten(0, -2),
            gradient.movedim(1, -1).flatten(0, -2),
        )
        parts = (kernels @ pixels.T).view(*weight.shape[1:], count, *gradient.shape[2:])
        into = gradient.new_zeros(channels, count, height + 2 * padding[0], width + 2 * padding[1])
        for i, j in product(*map(range, weight.shape[2:])):
            rows, columns = (
                slice(start, start + s * size, s)
                for start, s, size in zip(
                    (i * dilation[0], j * dilation[1]), stride, gradient.shape[2:], strict=True
                )
            )
            into[:, :, rows, columns] += parts[:, i, j]
        top, left = padding
        return (
            into[:, :, top : top + height, left : left + width].transpose(0, 1).contiguous(),
            None,
            None,
            None,
        )


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
    """With gradients in the images only."""

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
    """``(a + b) * (y > 0)``, made while the program runs, in a tenth of a second."""
    code = (
        "template <typename T> T sum_where_positive(T a, T b, T y) { return y > T(0) ? a + b : "
        "T(0); }"
    )
    return torch.cuda.jiterator._create_jit_fn(code)


@cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, dynamic=True)


def _scale_shift_relu(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return (x * scale + shift).relu().to(x.dtype)


def _scale_where_positive(gradient: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    return torch.where(y > 0, gradient * scale, 0).to(gradient.dtype)
