"""`rowmill.export`: a module becomes a bundle."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rowmill._extras import extra
from rowmill.errors import CannotExport, InvalidInput
from rowmill.files import link_or_copy
from rowmill.integrations.torchrec.per_key import per_key
from rowmill.nn import stored_modules
from rowmill.partition.bundle import Bundle, save_program, write_manifest
from rowmill.partition.capture import capture
from rowmill.partition.compiled import (
    PACKAGE,
    CannotCompile,
    compile_program,
    compiled_for,
    require_compiler,
)
from rowmill.partition.named_lookup import named
from rowmill.partition.new_bundle import bundle_folder, new_path
from rowmill.partition.operators import Operators, name_of
from rowmill.partition.placement import place
from rowmill.partition.plan import NotNative, dtype_name, plan_of, shape_of
from rowmill.partition.report import report
from rowmill.partition.rows import copy_store, store_weights
from rowmill.partition.split import Part, Split, split

with extra("train"):
    import safetensors.torch

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from rowmill.partition.capture import Example, Pass
    from rowmill.partition.placement import Rule

_RAGGED_PARTS = ("values", "offsets", "weights")
_TOLERANCE = 1e-5


def export(
    module: nn.Module,
    examples: Sequence[Example],
    *,
    out: str | os.PathLike[str],
    passes: Sequence[Pass] = (),
    rule: Rule = "bytes",
    compile: bool = False,
    seeds: Collection[str] = (),
    cpu_only: Collection[str] = (),
    user: Collection[str] = (),
    transform: Mapping[str, Any] | None = None,
    rows: Path | None = None,
) -> tuple[str, ...]:
    """Write a bundle with the two halves of a module.

    Args:
        module: Any module with embeddings, torch's or stored ones. It is exported in eval mode.
        examples: Calls of the module, with at least 2 rows each: tuples of arguments, or dicts. Rules count bytes for the
            first. Dimension 0 of every tensor may differ at run time. A KeyedJaggedTensor X of TorchRec becomes the inputs
            `X_KEY_values`, `X_KEY_offsets` and, if it has weights, `X_KEY_weights`.
        out: The folder of the bundle; nothing may be there.
        passes: Changes of the graph, applied in this order before the partition.
        rule: "bytes", the fewest bytes per request, or "prism", the rule of the Prism paper.
        compile: Add the dense half as an AOTInductor package for this kind of machine.
        seeds: Further operators that the dense half must run, such as "mylib::attention".
        cpu_only: Further operators that it must not run.
        user: Names of inputs that a ranking request has once; it has all others once per candidate. Of a ragged input, all parts.
        transform: How raw columns become inputs (`rowmill.partition.transform`), if that is part of the bundle.
        rows: A copy of the rows without optimizer state, which becomes part of the bundle; None: rows are copied.

    Returns:
        Notes on this bundle, one sentence each; empty if nothing is unusual.

    Raises:
        BundleExists: Something is at `out`.
        CannotExport: torch.export cannot trace the module; names operator and source line. Or `compile` needs a C++ compiler.
        OSError: The disk is full, or another failure of the system; names the path. Nothing is at `out` then.
    """
    if rule not in ("prism", "bytes"):
        raise InvalidInput(f'rule must be "bytes" or "prism", got {rule!r}')
    path = new_path(out)
    if compile:
        require_compiler()
    module, examples = per_key(module, examples)
    captured = capture(
        module, examples, passes=passes, operators=Operators.with_registered(seeds, cpu_only)
    )
    unknown = sorted(set(user) - set(captured.inputs))
    if unknown:
        raise InvalidInput(f"user names {unknown[0]!r}, but the inputs are {list(captured.inputs)}")
    for name in captured.inputs:
        if name.endswith("_offsets"):
            _check_ragged(name.removesuffix("offsets"), captured.inputs, user)
    parts = split(captured, place(captured.graph, rule), examples[0])
    with bundle_folder(path) as folder:
        if transform is not None:
            (folder / "transform.json").write_text(json.dumps(transform) + "\n")
        return _write(folder, module, parts, examples, compile=compile, user=user, rows=rows)


def _check_ragged(of: str, inputs: Collection[str], user: Collection[str]) -> None:
    """The parts of a ragged input are given once or per candidate together."""
    parts = [name for name in (f"{of}{part}" for part in _RAGGED_PARTS) if name in inputs]
    missing = [name for name in parts if name not in user]
    if len(parts) > 1 and 0 < len(missing) < len(parts):
        raise InvalidInput(
            f"user lacks {missing[0]!r}, but has other parts of this ragged input: name all of {parts}"
        )


def _write(
    folder: Path,
    module: nn.Module,
    parts: Split,
    examples: Sequence[Example],
    *,
    compile: bool,
    user: Collection[str],
    rows: Path | None,
) -> tuple[str, ...]:
    captured, said = parts.captured, list(parts.warnings)
    about: dict[str, Any] = {"rule": parts.placement.rule, "examples": len(examples)}
    if foreign := _foreign(parts):
        said.append(
            f"no worker can run this bundle, because workers import no library that has {', '.join(foreign)}"
        )
    weights: dict[str, Tensor] = {}
    matrices: dict[str, Tensor] = {}
    for half, part in (("cpu", parts.cpu), ("post", parts.post)):
        if part is None:
            continue
        try:
            plan = plan_of(part)
        except NotNative as outside:
            said.append(f"the {half} half runs in torch: no step of a plan is {outside}")
            program = parts.again(part, examples[0], named).program
            weights |= save_program(program, folder / f"{half}.pt2")
            continue
        (folder / f"{half}.json").write_text(json.dumps(plan, indent=1) + "\n")
        state: dict[str, Any] = {**part.program.state_dict, **part.program.constants}
        for step in plan["steps"]:
            if step["op"] == "weight":
                weights[step["name"]] = state[step["name"]].detach().contiguous()
            elif step["op"] == "lookup":
                names = [f"{name}.weight" for name in step["tables"]]
                found = {name: state[name] for name in names if name in state}
                matrices |= {name.removesuffix(".weight"): found[name] for name in found}
    if parts.dense is not None:
        weights |= save_program(parts.dense.program, folder / "dense.pt2")
        portable = parts.portable_dense(examples[0])
        if _has_ours(parts.dense):
            save_program(portable.program, folder / "dense.portable.pt2")
        if compile:
            try:
                _compile(parts, portable, folder / PACKAGE, weights, examples[0])
                about["compiled"] = compiled_for()
            except CannotCompile as reason:
                said.append(f"the dense half is not compiled, its program runs instead: {reason}")
    safetensors.torch.save_file(_apart(weights), folder / "weights.safetensors")
    if rows is None:
        _write_rows(folder / "rows", module, matrices)
    else:
        # Links: the module still reads the files where they are.
        shutil.copytree(rows, folder / "rows", copy_function=link_or_copy)
    _write_signature(folder / "signature.json", parts, user)
    tensors: dict[str, Tensor] = {}
    for number, example in enumerate(examples):
        inputs = captured.flat(example)
        for name, value in zip(captured.inputs, inputs, strict=True):
            tensors[f"{number}.input.{name}"] = value.detach().contiguous()
        values = parts.values(inputs)
        for at, name in enumerate(parts.outputs):
            tensors[f"{number}.output.{at}"] = values[name].detach().contiguous()
    safetensors.torch.save_file(_apart(tensors), folder / "examples.safetensors")
    (folder / "report.html").write_text(report(parts, examples[0]))
    write_manifest(folder, {**about, "notes": said})
    _check(folder)
    return tuple(said)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of which no two share memory, which a file of tensors refuses."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, value in tensors.items():
        memory = value.untyped_storage().data_ptr()
        found[name] = value.clone() if memory in seen else value
        seen.add(memory)
    return found


def _write_rows(folder: Path, module: nn.Module, matrices: dict[str, Tensor]) -> None:
    stores = {
        table.store
        for _, stored in stored_modules(module)
        for table in stored.stored_tables().values()
    }
    if len(stores) > 1 or (stores and matrices):
        raise CannotExport(
            f"the embeddings of {type(module).__name__} lie in {len(stores)} stores and {len(matrices)} torch modules; a "
            "bundle has one store: convert all embeddings into one with rowmill.convert"
        )
    if stores:
        copy_store(stores.pop(), folder)
    elif matrices:
        store_weights(matrices, folder)


def _write_signature(path: Path, parts: Split, user: Collection[str]) -> None:
    captured = parts.captured
    nodes = {node.name: node for node in captured.program.graph.nodes}

    def described(name: str, **more: Any) -> dict[str, Any]:
        value = nodes[name].meta["val"]
        return {"name": name, "dtype": dtype_name(value.dtype), "shape": shape_of(value), **more}

    placement = parts.placement
    taken = set[str]() if parts.dense is None else set(parts.dense.inputs)
    signature = {
        "inputs": [
            described(name, per="user" if name in user else "item") for name in captured.inputs
        ],
        "outputs": list(parts.outputs),
        "output_shapes": [described(str(name)) for name in parts.outputs],
        "crossing": [described(name, bytes=size) for name, size in placement.crossing.items()],
        "size_carriers": sorted(taken - placement.crossing.keys()),
        "reply": [described(name, bytes=size) for name, size in placement.reply.items()],
        "halves": {
            half: {"inputs": list(part.inputs), "outputs": list(part.outputs)}
            for half, part in (("cpu", parts.cpu), ("dense", parts.dense), ("post", parts.post))
            if part is not None
        },
    }
    path.write_text(json.dumps(signature, indent=1) + "\n")


def _foreign(parts: Split) -> list[str]:
    """Operators of libraries other than torch and rowmill."""
    made = [part for part in (parts.cpu, parts.dense, parts.post) if part is not None]
    names = {name_of(node.target) for part in made for node in part.program.graph.nodes}
    known = ("aten", "prims", "prim", "higher_order", "rowmill")
    return sorted(name for name in names if "::" in name and name.split("::")[0] not in known)


def _has_ours(part: Part) -> bool:
    return any(name_of(node.target).startswith("rowmill::") for node in part.program.graph.nodes)


def _compile(
    parts: Split, portable: Part, path: Path, weights: dict[str, Tensor], example: Example
) -> None:
    values = parts.values(parts.captured.flat(example))
    inputs = [values[name].contiguous() for name in portable.inputs]
    expected = [values[name] for name in portable.outputs]
    compile_program(portable.program, path, weights, inputs, expected)


def _check(folder: Path) -> None:
    """Answer the examples from the files of a bundle."""
    with Bundle.open(folder) as bundle:
        for number, (inputs, answers) in enumerate(bundle.examples()):
            for at, (given, expected) in enumerate(zip(bundle.run(inputs), answers, strict=True)):
                if not torch.allclose(
                    given.double(),
                    expected.double(),
                    rtol=_TOLERANCE,
                    atol=_TOLERANCE,
                    equal_nan=True,
                ):
                    worst = float((given.double() - expected.double()).abs().max())
                    raise CannotExport(
                        f"output {at} of example {number} differs by {worst:.3g} between the bundle and the module: report "
                        "this with the module"
                    )
