"""Files from outside go through the readers of `vitrail.untrusted`; what parses directly is listed with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.import_graph import PACKAGE, files

PARSERS = {
    "json": {"loads", "load", "JSONDecoder"},
    "yaml": {"load", "load_all", "safe_load", "safe_load_all", "full_load", "unsafe_load", "SafeLoader", "Loader"},
    "ElementTree": {"fromstring", "parse", "iterparse", "XML", "XMLParser", "XMLPullParser"},
    "expat": {"ParserCreate"},
    "zipfile": {"ZipFile"},
    "tarfile": {"open", "TarFile"},
    "parquet": {"ParquetFile", "read_table", "ParquetDataset"},
    "csv": {"reader", "DictReader"},
    "np": {"load", "fromfile", "loadtxt", "genfromtxt"},
}
DIRECT = {
    "untrusted/json_documents.py": {"json.loads": "the reader"},
    "untrusted/yaml_documents.py": {"yaml.load": "the reader", "yaml.SafeLoader": "the reader"},
    "untrusted/xml_documents.py": {"ElementTree.fromstring": "the reader", "ElementTree.XMLParser": "the reader"},
    "untrusted/archives.py": {"zipfile.ZipFile": "the reader"},
    # its own bytes, which it wrote in the same process, or receives from its own process
    "checksums.py": {"json.loads": "the header of tensors that were encoded just now"},
    "reports/facts.py": {"json.loads": "what was dumped just now"},
    "data/workers.py": {"json.loads": "the pipes of its own processes"},
    "weights/onnx/sandbox.py": {"json.loads": "the argument from the process that started it"},
    "weights/openvino/sandbox.py": {"json.loads": "the argument from the process that started it"},
    "weights/pickle_sandbox.py": {
        "json.loads": "the argument from the process that started it",
        "zipfile.ZipFile": "the directory, in a process with limited memory and time",
    },
    "data/sources/labels.py": {"csv.reader": "one cell of a table, whose line is limited"},
    "runs/checkpoint.py": {"json.loads": "a file whose SHA-256 is in the checksummed manifest"},
    "training/fingerprint.py": {"np.load": "a file whose SHA-256 is compared before"},
    "inference/index.py": {"np.load": "a file whose SHA-256 is in the checksummed index, mapped"},
    "data/decoded_cache.py": {"np.load": "a file of the cache, mapped; its size was compared"},
    "verbs/export/files.py": {"zipfile.ZipFile": "the archive that was exported just now"},
    # with limits of their own from `untrusted.limits`
    "shards/index.py": {"np.load": "a table whose SHA-256 is in the index, mapped and checked by `check_tables`"},
    "data/sources/arrays.py": {"zipfile.ZipFile": "members go through `untrusted.archives`"},
    "weights/google.py": {"zipfile.ZipFile": "members go through `untrusted.archives`"},
    "data/sources/parquet.py": {"parquet.ParquetFile": "rows and expansion are checked before columns are read"},
    "data/sources/manifests.py": {"csv.reader": "lines of limited length"},
    "data/sources/source.py": {"csv.reader": "a file of limited size"},
    "data/sources/mask_names.py": {"csv.reader": "a file of limited size"},
    "training/train.py": {"csv.DictReader": "rows that vitrail wrote, for whoever trained the run"},
    "data/sources/bad_images.py": {"csv.reader": "rows that vitrail wrote, each with a checksum"},
}


def find_parsers(package: Path) -> Iterator[tuple[str, str]]:
    """The file, and the name of the parser, of each place that names one."""
    for file in files(package):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id=library) | ast.Attribute(attr=library), attr=name):
                    names = [name]
                case ast.ImportFrom(module=str(module), names=imported):
                    library, names = module.rpartition(".")[2], [each.name for each in imported]
                case _:
                    continue
            library = {"numpy": "np", "etree": "ElementTree"}.get(library, library)
            for name in PARSERS.get(library, set()) & set(names):
                yield file.relative_to(package).as_posix(), f"{library}.{name}"


def test_files_from_outside_are_parsed_by_the_readers_with_limits():
    found = set(find_parsers(PACKAGE))
    listed = {(file, parser) for file, parsers in DIRECT.items() for parser in parsers}
    assert found - listed == set(), "read these with vitrail.untrusted, or list them with the reason"
    assert listed - found == set(), "these are not there any more"


def test_a_direct_use_of_a_parser_is_found(tmp_path):
    (tmp_path / "a.py").write_text(
        "import json\nfrom yaml import safe_load\nimport numpy\njson.loads(x)\nnumpy.load(y)\n"
    )
    (tmp_path / "b.py").write_text("import pyarrow\njson.dumps(x)\npyarrow.parquet.ParquetFile(x)\nself.json.load\n")
    expected = {
        ("a.py", "json.loads"),
        ("a.py", "yaml.safe_load"),
        ("a.py", "np.load"),
        ("b.py", "parquet.ParquetFile"),
    }
    assert set(find_parsers(tmp_path)) == expected | {("b.py", "json.load")}
