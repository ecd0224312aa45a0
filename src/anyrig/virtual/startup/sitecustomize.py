"""Startup code of every Python process in a rehearsal: install the rig once torch is imported.

Python imports the first `sitecustomize` on its path, and `inheritance.py` puts this folder first
on ``PYTHONPATH``. Most processes never import torch, so this file imports only modules that the
interpreter has already loaded. At the end this file removes itself from the path and imports the
`sitecustomize` that Python would have found otherwise.
"""

import os
import sys


class _Hook:
    """A finder that replaces itself with anyrig's `TorchWatch` at the first import of torch."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        place = sys.meta_path.index(self)
        try:
            from anyrig.virtual.torch_import import TorchWatch
        except ImportError as error:
            del sys.meta_path[place]
            if any(finder.find_spec(name, path, target) for finder in sys.meta_path[place:]):
                sys.stderr.write(
                    "anyrig: error: this process belongs to a rehearsal, and its Python, "
                    f"{sys.executable}, has torch but not anyrig ({error}); install anyrig there, "
                    "or start the process without ANYRIG_REHEARSAL in its environment\n"
                )
                sys.exit(1)
            return None
        if "ANYRIG_RECORDS" in os.environ:
            # Above the room of this file, like a program.
            from importlib import import_module

            import_module("anyrig.rehearsal.record_folder").note_running_process()
        watch = sys.meta_path[place] = TorchWatch(_install)
        return watch.find_spec(name, path, target)


def _install():  # type: ignore[no-untyped-def]
    from anyrig.virtual.installed import install_inherited

    install_inherited()
    if "ANYRIG_RECORDS" in os.environ:
        from importlib import import_module

        import_module("anyrig.rehearsal.record_folder").record_for_report()
    if "ANYRIG_VERIFICATION" in os.environ:
        from importlib import import_module

        import_module("anyrig.verification.channel").record_this_process()


if "ANYRIG_REHEARSAL" in os.environ:
    sys.meta_path.insert(0, _Hook())

_folder = os.path.dirname(__file__)  # noqa: PTH120 - pathlib would have to be imported
sys.path[:] = [entry for entry in sys.path if entry != _folder]
sys.path_importer_cache.pop(_folder, None)
del sys.modules[__name__]
# If there is no other `sitecustomize`, Python ignores the ImportError.
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
