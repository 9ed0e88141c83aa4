"""Human-readable summary of a bundle. torch is not imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle, Manifest
from appliance.contract.graphs import GRAPHS
from export.parity import ALLOWED_PEAK
from export.sources import look
from export.sources.weights import KNOWN

COMMONEST = 8
CASES = {"both": "both cases", "lower": "lower case", "upper": "upper case"}


def describe(bundle: Bundle) -> str:
    """Sizes, parameters, operators, precision, licences and parity, as text."""
    m = bundle.manifest
    lines = [
        f"{m.family}, {m.precision}, format {m.format}; backends {', '.join(m.backends)}; "
        f"batch-invariant: {'yes' if m.batch_invariant else 'no'}; up to {m.max_frames} frames "
        f"({m.max_frames / m.mel.frames_per_second:.1f} s)",
        f"vocoder {m.vocoder.name} ({m.vocoder.padding}), {m.vocab_size} vocabulary entries",
        *_known(m),
        *([f"adapter: {m.evidence['adapter']}"] if "adapter" in m.evidence else []),
        f"licence of the weights: {m.licence.weights} ({m.licence.source or 'source unknown'})",
        f"licence of the vocoder: {m.licence.vocoder} ({m.licence.vocoder_source or 'source unknown'})",
        *([f"terms: {m.licence.note}"] if m.licence.note else []),
        f"weights: {m.weights or 'not recorded'}; languages: {', '.join(m.text.languages) or 'not known'}; "
        f"tokenizer {':'.join(filter(None, (m.text.tokenizer, m.text.voice)))}; "
        f"letters of {CASES[m.text.case]}, {m.text.form}; "
        f"lengths by {m.text.lengths}",
        *([f"text stands in {' … '.join(m.text.around)}{_dialect(m)}"] if any(m.text.around) else []),
        _sampler(m),
        f"size: {sum(f.size_bytes for f in m.files.values()) / 1e6:.1f} MB",
        "",
        f"{'graph':11s} {'file':28s} {'parameters':>12s} {'MB':>8s}  element types; operators",
    ]
    for name in GRAPHS:
        for file in dict.fromkeys(v[name] for v in m.variants.values() if name in v):
            lines.append(_graph_line(name, bundle.folder / file))
    return "\n".join([*lines, "", *parity_lines(m)])


def _dialect(manifest: Manifest) -> str:
    dialect = manifest.text.dialect
    return (
        f", for the dialect {dialect}; --dialect or --text-around of a new export set it" if dialect else ""
    )


def _sampler(manifest: Manifest) -> str:
    sampler, d = manifest.sampler, manifest.defaults
    trained = (
        f", trained with {' to '.join(f'{w:g}' for w in sampler.strengths)}" if sampler.strengths else ""
    )
    strength = "" if sampler.guidance == "none" else f" of {d.guidance:g}"
    return (
        f"sampler: {sampler.update}, guidance {sampler.guidance}{strength}{trained}; "
        f"{sampler.steps_allowed} steps of the grid {d.grid}, sway {d.sway:g}"
    )


def _known(manifest: Manifest) -> list[str]:
    """Lines about the known weights, or about all rows of their repository that have the bundle's family."""
    rows = [row for row in KNOWN.values() if manifest.licence.source.startswith(row.source)]
    rows = [row for row in rows if manifest.family in (row.name, row.family)] or rows
    return [
        f"known weights: {row.name}, stated {row.licence}"
        + (f" ({row.warning})" if row.warning else "")
        + (f"; unverified: {row.unverified}" if row.unverified else "")
        for row in rows
    ]


def parity_lines(manifest: Manifest) -> list[str]:
    record = manifest.parity
    lines = [table(record), f"sampling: {manifest.defaults.sampling}"]
    if "peaks" in record:
        peaks = (f"{p['where']} {p['value']:g}" for p in record["peaks"])
        lines.append(f"largest in float16, of {ALLOWED_PEAK:,.0f} allowed: {', '.join(peaks)}")
    if "accepted_by" in record:
        lines += [
            f"accepted by: {record['accepted_by']}",
            *(f"beyond its bound: {f}" for f in record["failed"]),
        ]
    return lines


def table(record: Mapping[str, Any]) -> str:
    """Rows of a parity report, and why upstream's DiT was not measured."""
    lines = [
        f"{'what':10s} {'variant':8s} {'against':12s} {'frames':>6s} {'NFE':>4s} {'t':>6s} {'error':>10s} "
        f"{'SNR dB':>7s} {'bound':>8s}"
    ]
    for r in record.get("rows", ()):
        time, snr, bound = (
            "–" if r.get(key) is None else format(r[key], form)
            for key, form in (("time", ".3f"), ("snr_db", ".1f"), ("bound", ".1e"))
        )
        lines.append(
            f"{r['what']:10s} {r.get('variant', 'default'):8s} {r['against']:12s} {r['frames']:6d} "
            f"{r['nfe']:4d} {time:>6s} {r['error']:10.2e} {snr:>7s} {bound:>8s}"
        )
    if (upstream := record.get("upstream", "measured")) != "measured":
        lines.append(f"upstream's DiT was not measured: {upstream}")
    return "\n".join(lines)


def described(place: Path) -> str:
    """Description of a bundle, or of a training's folder or file. Raises BundleError, CheckpointError."""
    return look.describe(place) if look.is_training(place) else describe(contract.read(place))


def _graph_line(name: str, path: Path) -> str:
    """Line about a graph: parameters, size, types and most frequent operators."""
    graph = onnx.load(path, load_external_data=False).graph
    parameters, types = Counter[str](), Counter[str]()
    size = path.stat().st_size
    for tensor in graph.initializer:
        kind = TensorProto.DataType.Name(tensor.data_type).lower()
        parameters[name] += prod(tensor.dims)
        types[kind] += prod(tensor.dims)
    data = path.with_name(f"{path.name}.data")
    size += data.stat().st_size if data.exists() else 0
    operators = Counter(node.op_type for node in graph.node).most_common(COMMONEST)
    kinds = ", ".join(f"{kind} {count / parameters[name]:.0%}" for kind, count in types.most_common(3))
    ops = ", ".join(f"{count} {op}" for op, count in operators)
    return f"{name:11s} {path.name:28s} {parameters[name]:12,d} {size / 1e6:8.1f}  {kinds}; {ops}"
