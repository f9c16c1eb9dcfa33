#pragma once
#include "xrt/virtual_npu.h"
