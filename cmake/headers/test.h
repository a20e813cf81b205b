// What is precompiled for tests on gcr_base: other people's headers only.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmake/headers/base.h"
