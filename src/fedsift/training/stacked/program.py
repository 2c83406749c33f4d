"""Compiles a network to a list of stacked operations, traced once with torch.fx for each mode."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fedsift.models.network import Dropout
from fedsift.training import native
from fedsift.training.stacked import layout
from fedsift.training.stacked.operations import (
    ForwardPass,
    Unstackable,
    build_layer,
    convolve,
    flatten,
    images_only,
    joined_norm,
    with_bias,
)

# The stacked form of functions and tensor methods that networks call between their layers
# ------------------------------------------------------------------------------


def _elementwise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda at, *arguments, **options: function(*arguments, **options)


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(at: ForwardPass, left: Any, right: Any) -> Any:
        if isinstance(left, Tensor) and isinstance(right, Tensor) and left.dim() != right.dim():
            raise Unstackable("images and vectors meet in one sum or product")
        return function(left, right)

    return run


def add_in_place(at: ForwardPass, left: Tensor, right: Any) -> Any:
    """left + right in left's memory, unless the sum is larger than left."""
    if isinstance(right, Tensor) and right.shape == left.shape:
        return left.add_(right)
    return FUNCTIONS[torch.add](at, left, right)


def _flatten(at: ForwardPass, x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if (start_dim, end_dim) not in ((1, -1), (1, 3)):
        raise Unstackable(f"flatten of axes {start_dim} to {end_dim}")
    return flatten(at, x)


def _reshape(at: ForwardPass, x: Tensor, *shape: Any) -> Tensor:
    """Only the flattening of all but the batch axis, in the ways in which people write it."""
    wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    flat = flatten(at, x)
    if len(wanted) == 2 and wanted[0] in (-1, flat.shape[1]) and wanted[1] in (-1, flat.shape[2]):
        return flat
    raise Unstackable(f"a reshape to {wanted}")


def _size(at: ForwardPass, x: Tensor, axis: int | None = None) -> Any:
    """Sizes as one site sees them."""
    own = (x.shape[1], x.shape[2]) if x.dim() == 3 else (x.shape[0], x.shape[1] // at.sites, *x.shape[2:])
    return own if axis is None else own[axis]


def _shape(at: ForwardPass, x: Tensor, name: str) -> Any:
    if name != "shape":
        raise Unstackable(f"the attribute '{name}' of a tensor")
    return _size(at, x)


def _item(at: ForwardPass, values: Any, index: Any) -> Any:
    if not isinstance(values, tuple) or not isinstance(index, int):
        raise Unstackable("indexing of a tensor")
    return values[index]


def _concatenate(
    at: ForwardPass, tensors: list[Tensor] | tuple[Tensor, ...], dim: int = 0, axis: int | None = None
) -> Tensor:
    along = dim if axis is None else axis
    kinds = {x.dim() for x in tensors}
    if len(kinds) != 1 or along not in ((1, -3) if kinds == {4} else (1, -1)):
        raise Unstackable(f"concatenation along axis {along}")
    if kinds == {3}:
        return torch.cat(list(tensors), dim=-1)
    return layout.images_from_pixels(torch.cat([layout.pixels(x, at.sites) for x in tensors], dim=-1))


def _mean(at: ForwardPass, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    axes = sorted(a % 4 for a in dim) if isinstance(dim, list | tuple) else None
    if x.dim() != 4 or axes != [2, 3]:
        raise Unstackable(f"a mean over axes {dim}")
    pooled = x.mean((2, 3), keepdim=True)
    return pooled if keepdim else flatten(at, pooled)


def _pool(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda at, x, *arguments, **options: function(images_only(x, "pool"), *arguments, **options)


_UNARY: tuple[Callable[..., Tensor], ...] = (
    F.relu, F.relu6, F.gelu, F.silu, F.leaky_relu, F.elu, F.selu, F.mish, F.softplus, F.hardswish,
    F.hardsigmoid, F.tanh, F.sigmoid, torch.relu, torch.tanh, torch.sigmoid,
)  # fmt: skip

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{function: _elementwise(function) for function in _UNARY},
    **{
        function: _arithmetic(function)
        for function in (operator.add, operator.iadd, operator.sub, operator.mul, operator.truediv)
    },
    torch.add: _arithmetic(torch.add),
    torch.mul: _arithmetic(torch.mul),
    torch.flatten: _flatten,
    torch.cat: _concatenate,
    torch.mean: _mean,
    torch.reshape: _reshape,
    operator.getitem: _item,
    getattr: _shape,
    F.max_pool2d: _pool(F.max_pool2d),
    F.avg_pool2d: _pool(F.avg_pool2d),
    F.adaptive_avg_pool2d: _pool(F.adaptive_avg_pool2d),
    F.adaptive_max_pool2d: _pool(F.adaptive_max_pool2d),
}

METHODS: dict[str, Callable[..., Any]] = {
    "relu": _elementwise(torch.relu),
    "tanh": _elementwise(torch.tanh),
    "sigmoid": _elementwise(torch.sigmoid),
    "add": _arithmetic(torch.add),
    "mul": _arithmetic(torch.mul),
    "flatten": _flatten,
    "view": _reshape,
    "reshape": _reshape,
    "size": _size,
    "mean": _mean,
    "contiguous": lambda at, x: x,
}

READ_BY_SITE: tuple[Callable[..., Any], ...] = (flatten, _flatten, _reshape)
"""Operations that take images however they lie."""


@dataclass(frozen=True)
class ProgramStep:
    """One operation: `slots[result] = run(pass, arguments)`; a `ResultSlot` among the arguments is looked up."""

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: int
    frees: tuple[int, ...]
    """Slots that nobody reads later, so that their memory can be reused at once."""


@dataclass(frozen=True)
class ResultSlot:
    index: int


@dataclass(frozen=True)
class StackedProgram:
    steps: tuple[ProgramStep, ...]
    slots: int
    output: int
    by_site: bool
    """Whether samples had best lie site by site, `[C, B, ...]` in memory, because native blocks read them."""
    features: int | None = None
    """What the network's `head` reads, where that is its last layer."""

    def __call__(self, at: ForwardPass, x: Tensor) -> Tensor:
        return self.both(at, x, features=False)[1]

    def both(self, at: ForwardPass, x: Tensor, features: bool) -> tuple[Tensor | None, Tensor]:
        """What the head reads, `[C, B, F]` if asked for, and the logits `[C, B, K]`."""
        if features and self.features is None:
            raise Unstackable("the network's last layer is not its head: its features cannot be found")
        kept = self.features if features else None
        values: list[Any] = [None] * self.slots
        values[0] = x
        for step in self.steps:
            arguments = [_look_up(value, values) for value in step.arguments]
            options = {key: _look_up(value, values) for key, value in step.options.items()}
            values[step.result] = step.run(at, *arguments, **options)
            for index in step.frees:
                if index != kept:
                    values[index] = None
        logits: Tensor = values[self.output]
        if logits.dim() != 3:
            raise Unstackable("the network does not return one row of logits a sample")
        return None if kept is None else values[kept], logits


def _look_up(value: Any, values: list[Any]) -> Any:
    if isinstance(value, ResultSlot):
        return values[value.index]
    if isinstance(value, list):
        return [_look_up(item, values) for item in value]
    return value


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Dropout) or super().is_leaf_module(m, module_qualified_name)


def compile_program(module: nn.Module, train: bool) -> StackedProgram:
    """The stacked program of a network in the given mode; the network's own mode is put back."""
    _refuse_hooks(module)
    modes = {part: part.training for part in module.modules()}
    module.train(train)
    try:
        graph = _Tracer().trace(module)
    except Unstackable:
        raise
    except Exception as error:  # whatever user code raises when fed a proxy
        raise Unstackable(f"the network cannot be traced: {error}") from error
    finally:
        for part, mode in modes.items():
            part.training = mode
    parts = dict(module.named_modules())
    _pool_before_relu(graph, parts)
    if native.library() is not None:
        _join_blocks(graph, parts)
        _join_norms(graph, parts)
    _bias_after_pool(graph, parts)
    return _assemble(graph, parts)


def _refuse_hooks(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks:
            raise Unstackable(f"layer '{name}' has hooks")


def _assemble(graph: fx.Graph, parts: dict[str, nn.Module]) -> StackedProgram:
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        raise Unstackable(f"the network takes {len(inputs)} inputs")
    [output] = [node for node in graph.nodes if node.op == "output"]
    if not isinstance(output.args[0], fx.Node):
        raise Unstackable("the network returns something else than logits")
    slots = {node: index for index, node in enumerate([*inputs, *nodes])}
    last_reader: dict[fx.Node, fx.Node] = {}
    for node in [*nodes, output]:
        last_reader.update(dict.fromkeys(node.all_input_nodes, node))
    steps = []
    for node in nodes:
        frees = tuple(slots[used] for used in node.all_input_nodes if last_reader[used] is node)
        arguments = tuple(_with_slots(value, slots) for value in node.args)
        options = {key: _with_slots(value, slots) for key, value in node.kwargs.items()}
        run = _in_place(node, parts) or _operation(node, parts)
        if any(BLOCK in used.meta for used in node.all_input_nodes) and not _reads_by_site(node, run):
            run = _with_images_of_all(run)
        steps.append(ProgramStep(run, arguments, options, slots[node], frees))
    by_site = bool(inputs[0].users) and all(BLOCK in reader.meta for reader in inputs[0].users)
    return StackedProgram(
        tuple(steps), len(slots), slots[output.args[0]], by_site, _read_by_head(output.args[0], slots)
    )


def _read_by_head(last: fx.Node, slots: dict[fx.Node, int]) -> int | None:
    """The slot of what the layer called `head` reads, where the network ends with it."""
    if last.op != "call_module" or last.target != "head" or not isinstance(last.args[0], fx.Node):
        return None
    return slots[last.args[0]]


def _with_slots(value: Any, slots: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return ResultSlot(slots[value])
    if isinstance(value, list | tuple):
        return [_with_slots(item, slots) for item in value]
    return value


def _reads_by_site(node: fx.Node, run: Callable[..., Any]) -> bool:
    return BLOCK in node.meta or run in READ_BY_SITE


def _with_images_of_all(run: Callable[..., Any]) -> Callable[..., Any]:
    """An operation that is given images site by site, `[C, B, ch, H, W]`, and first lays all sites side by side."""

    def convert(value: Any) -> Any:
        if isinstance(value, list):
            return [convert(item) for item in value]
        by_site = isinstance(value, Tensor) and value.dim() == 5
        return layout.images_from_samples(value) if by_site else value

    return lambda at, *arguments, **options: run(at, *map(convert, arguments), **options)


def _operation(node: fx.Node, parts: dict[str, nn.Module]) -> Callable[..., Any]:
    if BLOCK in node.meta:
        return _block(*node.meta[BLOCK])
    if NORM in node.meta:
        part, name = node.meta[NORM]
        return joined_norm(part, name, relu=True)
    if node.op == "call_module":
        name, part = str(node.target), parts[str(node.target)]
        if isinstance(part, nn.Conv2d) and node.meta.get(BIAS_LATER):
            return convolve(part, name, biased=False)
        run = build_layer(part, name)
        return with_bias(run, node.meta[BIAS_OF]) if BIAS_OF in node.meta else run
    if node.op == "call_function" and node.target in FUNCTIONS:
        return FUNCTIONS[node.target]
    if node.op == "call_method" and node.target in METHODS:
        return METHODS[str(node.target)]
    raise Unstackable(f"'{node.target}' ({node.op.replace('_', ' ')}) has no stacked form")


def _in_place(node: fx.Node, parts: dict[str, nn.Module]) -> Callable[..., Any] | None:
    """A form of ReLU or addition that overwrites its first argument, where nobody else will read that."""
    if BLOCK in node.meta or NORM in node.meta:
        return None
    if _is_relu(node, parts) and _may_be_overwritten(node.args[0], parts):
        return lambda at, x, **_: torch.relu_(x)
    if _is_sum(node) and _may_be_overwritten(node.args[0], parts):
        return add_in_place
    return None


def _may_be_overwritten(value: Any, parts: dict[str, nn.Module]) -> bool:
    """Whether a result has one reader, and its own gradient is found without looking at it again."""
    if not isinstance(value, fx.Node) or len(value.users) != 1 or {BLOCK, NORM} & set(value.meta):
        return False
    if value.op == "call_module":
        return type(parts[str(value.target)]) in OVERWRITABLE
    return value.op == "call_function" and value.target in (operator.add, operator.iadd, torch.add, torch.cat)


OVERWRITABLE = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d, nn.GroupNorm, nn.MaxPool2d)


def _pool_before_relu(graph: fx.Graph, parts: dict[str, nn.Module]) -> None:
    """maxpool(relu(x)) = relu(maxpool(x)): the same numbers for a quarter of the element-wise work."""
    for pool in list(graph.nodes):
        if not (pool.op == "call_module" and isinstance(parts[str(pool.target)], nn.MaxPool2d)):
            continue
        relu = pool.args[0]
        if not _is_relu(relu, parts) or len(relu.users) != 1:
            continue
        pool.replace_input_with(relu, relu.args[0])
        pool.replace_all_uses_with(relu, delete_user_cb=lambda user, relu=relu: user is not relu)
        relu.replace_input_with(relu.args[0], pool)
        pool.append(relu)


BLOCK = "block"


def _join_blocks(graph: fx.Graph, parts: dict[str, nn.Module]) -> None:
    """Convolution, pooling and ReLU in a row become one native operation, where the kernels know their kinds."""
    for relu in list(graph.nodes):
        pool = _only_reader_of_layer(relu.args[0], parts, nn.MaxPool2d) if _is_relu(relu, parts) else None
        conv = None if pool is None else _only_reader_of_layer(pool.args[0], parts, nn.Conv2d)
        if pool is None or conv is None:
            continue
        name = str(conv.target)
        kind = native.PooledBlock.of(parts[name], parts[str(pool.target)])
        if kind is None:
            continue
        relu.replace_input_with(pool, conv.args[0])
        relu.meta[BLOCK] = (kind, name, parts[name].bias is not None)
        graph.erase_node(pool)
        graph.erase_node(conv)


NORM = "norm"


def _join_norms(graph: fx.Graph, parts: dict[str, nn.Module]) -> None:
    """Batch norm and ReLU become one operation, with the sum that may stand between them."""
    for relu in list(graph.nodes):
        if not _is_relu(relu, parts) or BLOCK in relu.meta:
            continue
        before = relu.args[0]
        norm, other = _only_reader_of_layer(before, parts, nn.BatchNorm2d), None
        if norm is None and _is_sum(before) and len(before.users) == 1:
            for own, beside in (before.args, before.args[::-1]):
                norm, other = _only_reader_of_layer(own, parts, nn.BatchNorm2d), beside
                if norm is not None and isinstance(other, fx.Node) and other is not norm:
                    break
                norm = None
        if norm is None:
            continue
        relu.args = (norm.args[0],) if other is None else (norm.args[0], other)
        relu.kwargs = {}
        relu.meta[NORM] = (parts[str(norm.target)], str(norm.target))
        if other is not None:
            graph.erase_node(before)
        graph.erase_node(norm)


def _is_sum(node: Any) -> bool:
    sums = (operator.add, operator.iadd, torch.add)
    called = isinstance(node, fx.Node) and node.op == "call_function" and node.target in sums
    return called and len(node.args) == 2 and not node.kwargs


def _only_reader_of_layer(value: Any, parts: dict[str, nn.Module], kind: type[nn.Module]) -> fx.Node | None:
    """The value's node, if it is a layer of this kind whose result has one reader."""
    is_layer = isinstance(value, fx.Node) and value.op == "call_module" and len(value.users) == 1
    return value if is_layer and type(parts[str(value.target)]) is kind else None


def _block(kind: native.PooledBlock, name: str, biased: bool) -> Callable[..., Any]:
    def run(at: ForwardPass, x: Tensor, **_: Any) -> Tensor:
        bias = at.state[f"{name}.bias"] if biased else None
        samples = x if x.dim() == 5 else layout.samples_from_images(x, at.sites)
        return native.block(kind, samples, at.state[f"{name}.weight"], bias)

    return run


BIAS_LATER, BIAS_OF = "bias later", "bias of"


def _bias_after_pool(graph: fx.Graph, parts: dict[str, nn.Module]) -> None:
    """maxpool(x + bias) = maxpool(x) + bias: a quarter of the sums that the bias's gradient takes."""
    for pool in graph.nodes:
        if not (pool.op == "call_module" and isinstance(parts[str(pool.target)], nn.MaxPool2d)):
            continue
        conv = pool.args[0]
        if conv.op != "call_module" or len(conv.users) != 1:
            continue
        layer = parts[str(conv.target)]
        if type(layer) is nn.Conv2d and layer.bias is not None:
            conv.meta[BIAS_LATER] = True
            pool.meta[BIAS_OF] = str(conv.target)


def _is_relu(node: Any, parts: dict[str, nn.Module]) -> bool:
    if not isinstance(node, fx.Node):
        return False
    if node.op == "call_module":
        return type(parts[str(node.target)]) is nn.ReLU
    return node.op == "call_function" and node.target in (F.relu, torch.relu) and len(node.args) == 1
