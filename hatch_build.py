"""The package's build hook: compile the guard, write the classifier's tables, mark the wheel as native."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent


def _module(name: str, path: Path) -> ModuleType:
    """Load one file of the package without importing the package, whose dependencies a build does not have."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs for wheels and editable installs alike, so that `broker/guard/guard` exists in both."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what the package ships beside its Python files. Raises CannotBuild with the remedy."""
        if self.target_name != "wheel":
            return
        _module("guard_build", ROOT / "broker" / "guard" / "build.py").build()
        tables = ROOT / "broker" / "classify" / "compile_tables.py"
        if tables.exists():
            sys.path.insert(0, str(ROOT))
            try:
                from broker.classify.compile_tables import main

                main()
            finally:
                sys.path.remove(str(ROOT))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
