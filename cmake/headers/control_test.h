// What is precompiled for tests on gcr_control: other people's headers only.
#pragma once

#include "cmake/headers/control.h"
#include "cmake/headers/test.h"
