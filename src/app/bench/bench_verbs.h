// hone bench step and hone bench ops on the command line.
#pragma once

#include "app/cli.h"

namespace hone {

void add_bench(CLI::App& app, Action& action);

}  // namespace hone
