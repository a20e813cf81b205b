// The headers that are precompiled for tests that link gcr_base: those of other projects only.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmake/headers/base.h"
