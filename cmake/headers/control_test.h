// The headers that are precompiled for tests that link gcr_control: those of other projects only.
#pragma once

#include "cmake/headers/control.h"
#include "cmake/headers/test.h"
