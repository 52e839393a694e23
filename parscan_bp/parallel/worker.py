"""One process of `parscan_bp.parallel.launch`: ``python -m parscan_bp.parallel.worker target``."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import sys
import time
import traceback

import jax


def main(target: str, *arguments: str) -> None:
    """Joins the others, calls the function, writes its result or its failure, and ends."""
    index, folder = os.environ["PARSCAN_BP_PROCESS"], pathlib.Path(os.environ["PARSCAN_BP_FOLDER"])
    try:
        address = os.environ["PARSCAN_BP_COORDINATOR"]
        jax.distributed.initialize(
            address,
            num_processes=int(os.environ["PARSCAN_BP_PROCESSES"]),
            process_id=int(index),
            cluster_detection_method="deactivate",
            coordinator_bind_address=address,
            initialization_timeout=60,
            heartbeat_timeout_seconds=10,
            shutdown_timeout_seconds=10,
        )
        module, name = target.split(":")
        result = getattr(importlib.import_module(module), name)(*arguments)
        (folder / f"{index}.result").write_text(json.dumps(result))
        jax.distributed.shutdown()
    except BaseException:
        told = {"time": time.time(), "text": traceback.format_exc()}
        (folder / f"{index}.failure").write_text(json.dumps(told))
        traceback.print_exc()
        sys.stderr.flush()
        # Not sys.exit: at exit JAX waits for the others, who wait for this process.
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
