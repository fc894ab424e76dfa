"""Checks on eight simulated devices, in a process of their own: sharded graphs against whole ones.

python -m tests.distributed.eight_devices          # some; --all: all; --few: models on 1, 2 and 3
python -m tests.distributed.eight_devices --gpu    # on all GPUs of this host, two at least
"""

import os
import sys

os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=8",
        os.environ.get("XLA_FLAGS", "").replace("--xla_force_host_platform_device_count=2", ""),
    ]
)
os.environ["JAX_PLATFORMS"] = "cuda,cpu" if "--gpu" in sys.argv else "cpu"

import jax

from tests.distributed.eight_devices.all_rows import check_all_rows, check_dealt_windows
from tests.distributed.eight_devices.attention import check_attention
from tests.distributed.eight_devices.layouts import (
    check_choice_and_rounding,
    check_dropout_and_bytes,
    check_errors,
    check_overlap,
    check_windows,
)
from tests.distributed.eight_devices.models import (
    EACH_BY_ROWS,
    MODELS,
    OVERLAPPED,
    SOME,
    check_models,
)
from tests.distributed.eight_devices.operations import (
    check_no_columns_and_keys,
    check_operation,
    check_transpose,
)
from tests.distributed.eight_devices.runs import check_page, check_plan, check_run

jax.config.update("jax_default_matmul_precision", "highest")


def main(arguments):
    if "--gpu" in arguments:
        devices = jax.device_count()
        assert jax.default_backend() == "gpu" and devices > 1, jax.devices()
        for shape in ((40, 200, devices), (9, 30, devices)):
            check_operation(*shape)
            check_attention(*shape)
        check_all_rows(devices)
        # Two axes need four devices.
        check_models(
            (make, [layout for layout in layouts if layout != "both" or devices >= 4], *rest)
            for make, layouts, *rest in (*MODELS, *OVERLAPPED)
        )
        print(f"all hold on {devices} {jax.devices()[0].device_kind}")
        return
    if "--few" in arguments:
        check_models(EACH_BY_ROWS, counts=(1, 2, 3))
        by_features = [
            (each[0], ("features",), *each[2:]) for each in MODELS if "features" in each[1]
        ]
        check_models(by_features, counts=(2,))
        print("all hold")
        return
    check_choice_and_rounding()
    check_dropout_and_bytes()
    check_overlap()
    check_windows()
    check_all_rows()
    check_errors()
    check_page()
    if "--all" in arguments:
        check_dealt_windows()
        check_no_columns_and_keys()
        check_run()
        for shape in ((40, 200, 3), (23, 100, 2), (12, 40, 1), (9, 0, 8), (9, 30, 8)):
            check_operation(*shape)
            check_attention(*shape)
        check_transpose(({"rows": "x"}, True), ({"rows": "r", "features": "c"}, False))
        check_models((*MODELS, *OVERLAPPED))
        check_plan()
    else:
        check_operation(9, 30, 8)
        check_models(SOME)
    print("all hold")


if __name__ == "__main__":
    main(sys.argv[1:])
