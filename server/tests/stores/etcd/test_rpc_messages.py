"""The generated message classes belong to `rpc.proto`, and load with every protobuf release that the package allows."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

SERVER = Path(__file__).parents[3]
ETCD = SERVER / "src/volcano_locks_server/stores/etcd"


def test_the_generated_classes_are_those_of_the_proto_file(tmp_path: Path) -> None:
    """After a change of rpc.proto: make etcd-proto."""
    source = SERVER / "src"
    compiler = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(source), f"--python_out={tmp_path}"]
    subprocess.run([*compiler, str(ETCD / "rpc.proto")], check=True)
    (generated,) = tmp_path.rglob("rpc_pb2.py")
    assert generated.read_text() == (ETCD / "rpc_pb2.py").read_text()


def test_the_package_requires_a_protobuf_that_is_not_older_than_the_compiler() -> None:
    """protobuf refuses to load classes of a newer compiler."""
    (compiler,) = re.findall(r"^# Protobuf Python Version: (\S+)$", (ETCD / "rpc_pb2.py").read_text(), re.MULTILINE)
    extra = tomllib.loads((SERVER / "pyproject.toml").read_text())["project"]["optional-dependencies"]["etcd"]
    assert f"protobuf>={compiler}" in [requirement.partition(",")[0] for requirement in extra]
