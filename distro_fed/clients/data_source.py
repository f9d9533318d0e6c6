"""Where an organisation's text lies.

The organisation's own node config decides. Paths in the run's settings come from whoever started the run; they
are followed only by the virtual nodes of a simulation. A run can therefore not make a deployed client read or write
a file of somebody else's choice.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distro_fed.errors import DataNotFound
from distro_fed.settings import DataSettings


@dataclass(frozen=True, slots=True)
class DataSource:
    """Name of the organisation and its two sources, each a file, folder or hub id.

    ``name`` is empty if none is configured: then Flower's node id stands for it. ``test`` is None if there is no
    held-out data: then nothing is evaluated.
    """

    name: str
    train: str
    test: str | None


def follows_run_paths(node_config: Mapping[str, object]) -> bool:
    """Whether paths in the run's settings are for this node: true for virtual nodes of a simulation.

    Flower's simulation runs clients in Ray workers; a deployed client process has nothing to do with Ray. A node
    config with ``simulation = true`` says the same.
    """
    ray = sys.modules.get("ray")
    return node_config.get("simulation") is True or (ray is not None and bool(ray.is_initialized()))


def data_source(node_config: Mapping[str, object], settings: DataSettings) -> DataSource:
    """Find the data of a node.

    Node config keys: ``data`` (a folder with train and test files, or a data set) or ``train-data`` and
    ``test-data`` (optional); ``name``. Without these: subfolder number ``partition-id`` of the folder
    ``settings.data_folder``, in sorted order.

    Raises
    ------
    DataNotFound
        Nothing is configured, or there are fewer organisations than nodes.
    """
    given = node_config.get("train-data") or node_config.get("data")
    if given:
        train = str(given)
        whole = "train-data" not in node_config and not Path(train).expanduser().is_file()
        test = node_config.get("test-data") or (train if whole else None)  # one file has no held-out part
        # never a name made out of the path: it would leave the organisation
        return DataSource(str(node_config.get("name", "")), train, str(test) if test else None)
    if not settings.data_folder or not follows_run_paths(node_config):
        raise DataNotFound(
            'no data: give the node --node-config \'data="/folder" name="..."\', or in a simulation set the run\'s '
            "'data-folder' to a folder with one subfolder for each organisation"
        )
    root = Path(settings.data_folder).expanduser()
    entries = root.iterdir() if root.is_dir() else ()
    folders = sorted(path for path in entries if path.is_dir() and not path.name.startswith("."))
    partition = int(str(node_config.get("partition-id", 0)))
    if partition >= len(folders):
        raise DataNotFound(
            f"{root} has {len(folders)} organisations, this is node {partition} (counting from 0): run as many nodes "
            "as there are subfolders"
        )
    folder = folders[partition]
    return DataSource(str(node_config.get("name") or folder.name), str(folder), str(folder))
