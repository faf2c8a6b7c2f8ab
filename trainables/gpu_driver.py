"""The driver of NVIDIA's GPUs, which may be too old for this build of PyTorch."""

import warnings

import pynvml

# The first driver for each major version of CUDA. Source: NVIDIA, CUDA Compatibility, Minor Version Compatibility.
OLDEST_DRIVERS = {"11": 450, "12": 525, "13": 580}


def find_driver_problem() -> str:
    """Return why torch cannot use the GPUs that the driver shows, or "".

    torch counts GPUs without CUDA, so that it counts those that its build cannot use, too.
    """
    import torch  # here, since the search of a program needs none

    count = torch.cuda.device_count()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of what is told below
        if not count or torch.cuda.is_available():
            return ""
    driver, cuda = _read_version(), str(torch.version.cuda)
    needed = OLDEST_DRIVERS.get(cuda.partition(".")[0], 0)
    if driver and int(driver.partition(".")[0]) < needed:
        return (
            f"torch {torch.__version__} is built for CUDA {cuda}, which needs NVIDIA's driver {needed} or newer, but "
            f"the driver is {driver}. Install a newer driver, or torch's build for an older CUDA."
        )
    return (
        f"torch {torch.__version__}, built for CUDA {cuda}, cannot use its GPUs, although driver {driver or 'unknown'} "
        "shows them. This says why: python -c 'import torch; torch.zeros(1).cuda()'"
    )


def _read_version() -> str:
    """Return the version of the driver, such as "580.65.06", or "" if it does not answer."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""
