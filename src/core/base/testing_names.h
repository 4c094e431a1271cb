// Our test support is in hone::testing, which hides googletest's namespace from code in hone. With this line testing::X
// names what either declares, whatever headers a joined source has read before.
#pragma once

#include <gmock/gmock.h>

namespace hone::testing {
using namespace ::testing;
}
