"""pyxrt's two enumerations, with XRT's values (ert.h and xrt.h)."""

from __future__ import annotations

import enum


class xclBOSyncDirection(enum.IntEnum):  # noqa: N801  pyxrt's own spelling
    """Which way `bo.sync` moves bytes. The GMIO directions belong to other devices and are refused."""

    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1
    XCL_BO_SYNC_BO_GMIO_TO_AIE = 2
    XCL_BO_SYNC_BO_AIE_TO_GMIO = 3


class ert_cmd_state(enum.IntEnum):  # noqa: N801  pyxrt's own spelling
    """The state of a run. RUNNING (3) is not exported by pyxrt: a started run is QUEUED until it ends."""

    ERT_CMD_STATE_NEW = 1
    ERT_CMD_STATE_QUEUED = 2
    ERT_CMD_STATE_COMPLETED = 4
    ERT_CMD_STATE_ERROR = 5
    ERT_CMD_STATE_ABORT = 6
    ERT_CMD_STATE_SUBMITTED = 7
    ERT_CMD_STATE_TIMEOUT = 8
    ERT_CMD_STATE_NORESPONSE = 9
    ERT_CMD_STATE_SKERROR = 10
    ERT_CMD_STATE_SKCRASHED = 11
